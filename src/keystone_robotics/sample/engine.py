"""One round of an attached policy, from top to bottom: noise → path → draw → verify → select → emit → chunk.

The override of a policy's sampling method builds a `SampleRequest` and returns ``self._keystone.run(request)``. The engine
lives on the overridden modules as ``_keystone``: plain Python, so it is neither a parameter nor in the ``state_dict``.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError, NoValidCandidate, TooManyCandidates
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.adaptive import merge_rows
from keystone_robotics.sample.check import CheckSettings, DrawTrace, Finding, compare_with_plain, verify
from keystone_robotics.sample.context import SamplingContext, coarsest_type
from keystone_robotics.sample.counters import Counters
from keystone_robotics.sample.episodes import EpisodeRows
from keystone_robotics.sample.event import Listeners, RoundEvent
from keystone_robotics.sample.noise import SeededDraws, derive_seed, global_generator, initial_noise, preserve_rng
from keystone_robotics.sample.paths import Paths
from keystone_robotics.sample.request import SampleRequest
from keystone_robotics.sample.seeds import current_seeds, row_seeds, seeds_for_rows
from keystone_robotics.sample.selector import Selector
from keystone_robotics.sample.steps import call_at_steps
from keystone_robotics.sample.timer import Mark, RoundTimer, wait_for
from keystone_robotics.sample.usage import Usage
from keystone_robotics.select import Selection, select
from keystone_robotics.select.agreement import AdaptiveRange, agree

log = logging.getLogger("keystone")
T = TypeVar("T")

#: Rounds that can be replayed while K is to be found: other threads may draw some before the listener that finds it is called.
KEEP_UNTIL_K_IS_FOUND = 8


@dataclass(frozen=True)
class SeededRequest:
    """A request with its seeds, which determine the candidates.

    Attributes:
        number: of the round since attaching.
        seeds: one per row; one in total if the batch size is unknown.
        request: of the override.
        temperature: factor on the initial noise.
        context: in which the round is sampled; None if the sampler is vectorised.
        k: requested candidates per row.
        steps: denoising steps of each candidate; None for the policy's own number.
        first: number of the first of them: the noise of a candidate depends on its number.
    """

    number: int
    seeds: tuple[int, ...]
    request: SampleRequest
    temperature: float
    context: SamplingContext | None
    k: int
    steps: int | None = None
    first: int = 0

    def draw(self, path: str, k: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Candidates (B, K, T, D), and all noise they were drawn from (K, ...)."""
        spec = self.request.noise
        if spec is None:
            assert self.request.vectorised is not None
            return self.request.vectorised(k, self.seeds[0], self.temperature)
        method = self.request.shared if path == "fast" else self.request.wide
        assert method is not None
        noise = initial_noise(self.seeds, k, spec.shape, spec.uniform, self.first)
        if self.temperature != 1.0:
            noise *= self.temperature
        noise = noise.to(spec.device, spec.dtype)
        with contextlib.ExitStack() as stack:
            later: list[Tensor] = []
            if self.request.stochastic:
                # The sampler's own draws are replaced, but still advance the global generator.
                stack.enter_context(preserve_rng(spec.device))
                later = stack.enter_context(SeededDraws(self.seeds, k, self.first)).drawn
            candidates = method(noise, k)
        if not isinstance(candidates, Tensor) or not candidates.ndim or len(candidates) != spec.batch * k:
            what = f"shape {tuple(candidates.shape)}" if isinstance(candidates, Tensor) else type(candidates).__name__
            raise KeystoneError(
                f"the sampler returned {what} for K={k} and {spec.batch} observations: expected {spec.batch * k} chunks, a "
                "tensor (B * K, T, D)"
            )
        noises = tuple(one.reshape(spec.batch, k, *one.shape[1:]).transpose(0, 1) for one in (noise, *later))
        return candidates.reshape(spec.batch, k, *candidates.shape[1:]), noises


@dataclass(eq=False)
class Engine:
    """Samples, verifies and selects for one attached policy.

    Attributes:
        adapter: how this family of policies is sampled K wide.
        owner: the attached object.
        selector: how one candidate is selected.
        k: candidates per round, at most; 1 runs the policy's own code.
        k_range: draw the first few, and the rest where these disagree; None draws all. Changed by `settings.set_k`.
        k_given: K is final; False with ``k="auto"`` until `settings.find_k`.
        steps: denoising steps of each candidate; None for the policy's own number. Changed by `settings.set_steps`.
        temperature: factor on the initial noise.
        seed: of all rounds, or None to draw each round's seed from torch's global generator.
        compile: compile the denoising step.
        check: run the self-check in the first round; "all" compares every candidate instead of three.
        keep: how many of the last rounds can be replayed.
        paths: where the fast path was found exact.
        path: of the last round; "undecided" before the first.
        verified_steps: the numbers of steps with which the self-check has passed.
        finding: result of the self-check; None before it.
        last: the selection of the last round.
        encoder_names: names of the adapter's encoder methods.
        watches_reset: the policy's ``reset`` starts a new episode, see `watch_reset`.
        episodes: which episode each row of a batch belongs to.
        overridden: (module, original class, class while attached), in order.
        trials: of each `settings.trial` that is active, the oldest first, the settings when it ends.
    """

    adapter: Adapter
    owner: Any
    selector: Selector
    k: int
    k_range: AdaptiveRange | None = None
    k_given: bool = True
    steps: int | None = None
    temperature: float = 1.0
    seed: int | None = None
    compile: bool = False
    check: Any = True
    keep: int = 0
    encoder_names: tuple[str, ...] = ()
    paths: Paths = field(default_factory=Paths)
    path: str = "undecided"
    verified_steps: set[int | None] = field(default_factory=set)
    finding: Finding | None = None
    last: Selection | None = field(default=None, repr=False)
    rounds: int = 0
    counters: Counters = field(default_factory=Counters)
    listeners: Listeners = field(default_factory=Listeners)
    watches_reset: bool = False
    episodes: EpisodeRows = field(default_factory=EpisodeRows, repr=False)
    timer: RoundTimer = field(default_factory=RoundTimer, repr=False)
    overridden: list[tuple[Any, type, type]] = field(default_factory=list, repr=False)
    kept: dict[int, tuple[SeededRequest, str, int]] = field(default_factory=dict, repr=False)
    lock: Any = field(default_factory=threading.Lock, repr=False)
    checking: Any = field(default_factory=threading.RLock, repr=False)
    stepping: Any = field(default_factory=threading.RLock, repr=False)
    usage: Usage = field(default_factory=Usage, repr=False)
    compiled: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict, repr=False)
    bypassed: dict[Any, Any] = field(default_factory=dict, repr=False)  # of `kit.bypass`
    trials: tuple[dict[str, Any], ...] = ()
    rehearsing: threading.local = field(default_factory=threading.local, repr=False)  # of `settings.rehearsal`
    _warned: bool = False

    # ---- the round

    def run(self, request: SampleRequest) -> Any:
        """One round: what the caller of the overridden method gets, made from the selected chunk of each row."""
        k, adaptive = self.k, self.k_range  # read once: they may change while the round runs
        if self.is_own_code(k):
            return self.run_single(request.own or request.single, request.chunk)
        steps = self.steps  # likewise
        request = replace(request.wrapped(partial(self._call_at, steps)), call=self.usage.call)
        with self.timer.round():
            round = self._next_round(request, k if adaptive is None else adaptive.least, steps)  # noise
            trace = self._draw_marked(round)  # path, draw, verify
            if adaptive is not None:
                trace, selection, seconds = self._draw_rest(round, trace, adaptive)
            else:
                selection, seconds = self._select(round, trace)  # select
            self._finish(round, trace, selection, seconds)  # emit
        return request.restore(selection.chunk)  # chunk

    def run_single(self, single: Callable[[], Any], chunk: Callable[[Any], Tensor] = lambda value: value) -> Any:
        """The policy's own code, bit for bit. Timed and reported only if there are listeners.

        Args:
            single: the policy's own method with its arguments.
            chunk: extracts the chunks (B, T, D) from its result.
        """
        single = self.at_steps(single)
        if not self.listeners and torch.compiler.is_compiling():  # timing would break the graph
            return single()
        listeners = self.listeners if self.rehearsed is None else self.rehearsed
        with self.timer.round():
            if not listeners:
                return single()
            self.timer.begin()
            value = single()
            try:
                candidates = chunk(value).detach().unsqueeze(1)
                ids = self._episode_ids(len(candidates))  # first: an unreported round has its rows too
                sampled = wait_for(candidates.device)
                selection = select(candidates, "first")
                times = self.timer.end(candidates.device, sampled, Mark.now().host - sampled.host)
                seen = ids, self.selector.space_for(candidates, 0), self.selector.window(0)
            except Exception as error:  # for example a non-finite chunk, which is the policy's to handle with K = 1
                log.debug("KeyStone: a round with K = 1 is not reported: %s", error)
                return value
            with self.lock:
                number = self.rounds
                self.rounds += self.rehearsed is None
            listeners.emit(RoundEvent(number, (), candidates, selection, "own", 1, times, *seen))
        return value

    # ---- noise

    @property
    def untouched(self) -> bool:
        """Whether the policy's own code runs: one candidate, its own noise."""
        return self.is_own_code(self.k)

    def is_own_code(self, k: int) -> bool:
        """Whether a round with K candidates runs the policy's own code."""
        return k == 1 and self.temperature == 1.0 and self.seed is None and current_seeds(id(self)) is None

    def _next_round(self, request: SampleRequest, k: int, steps: int | None) -> SeededRequest:
        with self.lock:
            number = self.rounds
            self.rounds += self.rehearsed is None
        batch, own = (None, None) if request.noise is None else (request.noise.batch, request.noise.seed)
        scoped = current_seeds(id(self))
        if scoped is not None:
            seeds = seeds_for_rows(scoped, batch)
        elif self.seed is not None:
            seeds = row_seeds(derive_seed(self.seed, number), batch)
        elif own is not None:
            seeds = row_seeds(derive_seed(own), batch)
        else:
            with global_generator:
                seeds = row_seeds(int(torch.randint(2**63 - 1, ())), batch)
        context = SamplingContext.of(request, steps)
        return SeededRequest(number, seeds, request, self.temperature, context, k, steps)

    # ---- path, draw, verify

    def _draw_marked(self, round: SeededRequest) -> DrawTrace:
        try:
            return self._draw(round)
        except (KeystoneError, MemoryError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            error.keystone_drawing = True  # type: ignore[attr-defined]  # for `override`
            raise

    def _draw(self, round: SeededRequest) -> DrawTrace:
        if self._is_verified(round):
            return self._draw_verified(round)
        with self.checking:  # other threads wait for the first to verify
            return self._draw_verified(round) if self._is_verified(round) else self._draw_and_verify(round)

    def _may_be_fast(self, round: SeededRequest) -> bool:
        """Whether the fast path is offered, enabled and not refused in this context."""
        if round.request.shared is None or not self.paths.fast or round.context in self.paths.refused:
            return False
        return round.k > 1 or round.context in self.paths.proved  # one candidate cannot verify several

    @property
    def verified(self) -> bool:
        """Whether the self-check has passed with the number of steps of the next round, or is disabled."""
        return not self.check or self.steps in self.verified_steps

    def _is_verified(self, round: SeededRequest) -> bool:
        checked = not self.check or round.steps in self.verified_steps
        return checked and (not self._may_be_fast(round) or round.context in self.paths.proved)

    def _draw_verified(self, round: SeededRequest) -> DrawTrace:
        """On the fast path if it was proved; on the plain path if that raises."""
        if not self._may_be_fast(round):
            return self._sample(round, "plain")
        try:
            return self._sample(round, "fast")
        except torch.cuda.OutOfMemoryError:  # with one candidate; the plain path needs no less memory
            raise
        except Exception as error:
            problem = _describe(error)
        # Outside of the handler: the exception keeps the fast path's tensors alive.
        trace = self._sample(round, "plain")  # raises too if the observation is invalid
        assert round.context is not None
        self.paths.fail(round.context, problem)
        return trace

    def _draw_and_verify(self, round: SeededRequest) -> DrawTrace:
        """The first round in a context: compare with the policy's own single calls and choose a path."""
        problem, plain = "", None
        if self._may_be_fast(round):
            assert round.context is not None
            try:
                trace, finding = self._sample_and_compare(round, "fast")
                if finding.doubtful and not finding.problem:
                    plain = self._sample_and_compare(round, "plain")
                    finding = compare_with_plain(finding, plain[1])
                problem = finding.problem
            except torch.cuda.OutOfMemoryError:  # the plain path needs no less memory, and this one is not at fault
                raise
            except Exception as error:  # the plain path avoids it, or raises for the same reason
                problem = _describe(error)
            if not problem:
                if finding.k > 1:
                    self.paths.proved.add(round.context)
                self._conclude(finding, round)
                return trace
        trace, finding = plain or self._sample_and_compare(round, "plain")
        self._conclude(finding, round)
        if problem and round.context is not None:
            self.paths.refuse(round.context, problem)
        return trace

    def _sample(self, round: SeededRequest, path: str) -> DrawTrace:
        """Draw K candidates; halve K while the device runs out of memory."""
        k = round.k
        while True:
            if not round.first:  # the rest of a round with adaptive K counts as the same sampling
                self.timer.begin()
            try:
                with self.timer.count(self.encoder_names) as calls:
                    candidates, noises = round.draw(path, k)
            except torch.cuda.OutOfMemoryError:
                if k == 1:
                    raise
                k //= 2
            except (MemoryError, RuntimeError) as error:
                if not isinstance(error, MemoryError) and "DefaultCPUAllocator" not in str(error):
                    raise
                problem = f"K={k} candidates do not fit into the memory of this machine: give a smaller k"
                raise TooManyCandidates(problem) from None
            else:
                break
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if not self._warned:
                self._warned = True
                log.warning(
                    "KeyStone: out of memory at K=%d; the round is drawn with K=%d (a smaller k avoids the retries)",
                    k * 2,
                    k,
                )
        if candidates.ndim != 4:
            raise KeystoneError(
                f"the sampler returned chunks of shape {tuple(candidates.shape[2:])} for each observation: expected "
                "(T, D), steps and action dimensions"
            )
        if not candidates.numel():
            raise KeystoneError(
                f"the sampler returned no numbers: candidates (B, K, T, D) of shape {tuple(candidates.shape)}"
            )
        return DrawTrace(candidates, noises, calls, path, wait_for(candidates.device))

    def _sample_and_compare(self, round: SeededRequest, path: str) -> tuple[DrawTrace, Finding]:
        trace = self._sample(round, path)
        request = round.request
        noise = request.noise or trace.candidates
        dtype = noise.dtype if request.precision is None else request.precision()
        modules = [
            part for module, _ in self.adapter.overrides(self.owner) for part in (module, *vars(module).values())
        ]
        # Stricter on the fast path: rejecting it costs time, rejecting the plain path raises.
        encoders = self.adapter.encoder_modules(self.owner) if trace.path == "fast" else None
        precision = coarsest_type(modules, dtype, noise.device, encoders)
        how = CheckSettings(self.check == "all", precision, round.temperature > 0)
        return trace, verify(round.request, trace, how, self.timer)

    def _conclude(self, finding: Finding, round: SeededRequest) -> None:
        if finding.problem:
            raise KeystoneError(f"KeyStone's self-check failed: {finding.problem}")
        self.finding = finding
        if (
            finding.k > 1 or round.k == 1
        ):  # one candidate, where memory was too small for more, proves nothing about several
            self.verified_steps.add(round.steps)
        log.info("KeyStone self-check passed: %s", finding)

    # ---- select

    def _select(self, round: SeededRequest, trace: DrawTrace) -> tuple[Selection, float]:
        """The selection among these candidates, and how many seconds it took."""
        begin = Mark.now()
        selection = self.select(round.request, trace.candidates)
        return selection, Mark.now().host - begin.host

    def select(self, request: SampleRequest, candidates: Tensor) -> Selection:
        """One of the K candidates (B, K, T, D) of each row."""
        with self.usage.bypass():  # a scorer may call the policy
            return self.selector.select(candidates, request.delay, request.call)

    def _draw_rest(
        self, round: SeededRequest, trace: DrawTrace, adaptive: AdaptiveRange
    ) -> tuple[DrawTrace, Selection, float]:
        """Adaptive K: select among the first few; where they disagree, draw the rest and select among all.

        The rest is drawn for the whole batch if one row needs it, but a row whose few agree is selected from these alone: its
        chunk does not depend on the other rows.
        """
        assert adaptive.most is not None
        few: Selection | None = None
        try:
            few, seconds = self._select(round, trace)
            agreed = agree(few, adaptive.limit)
            if agreed.all() or trace.candidates.shape[1] < round.k:  # memory is too small for more
                return trace, few, seconds
        except NoValidCandidate as error:  # the rest may be finite
            empty = list(error.rows)
            others = [row for row in range(len(trace.candidates)) if row not in empty]
            if empty and others:
                # Another row stands in for those without a valid candidate, so that rows keep their places; it is not used.
                candidates = trace.candidates.clone()
                candidates[empty] = trace.candidates[others[0]]
                few, seconds = self._select(round, replace(trace, candidates=candidates))
                agreed = agree(few, adaptive.limit)
                agreed[empty] = False
        trace = trace.followed_by(self._draw_marked(replace(round, first=round.k, k=adaptive.most - round.k)))
        selection, seconds = self._select(round, trace)
        return trace, selection if few is None else merge_rows(few, selection, agreed), seconds

    # ---- emit

    def _episode_ids(self, rows: int) -> tuple[Hashable, ...]:
        """Whose rows a round has. A rehearsed round takes none of an iterator's ids: those are of the rounds that count."""
        return self.episodes.ids(id(self), rows) if self.rehearsed is None else self.episodes.numbered(rows)

    def _finish(self, round: SeededRequest, trace: DrawTrace, selection: Selection, seconds: float) -> None:
        times = self.timer.end(trace.candidates.device, trace.sampled, seconds)
        self.path = trace.path
        k, rehearsed = trace.candidates.shape[1], self.rehearsed
        # What outlives the round holds no autograd graph.
        kept = selection._replace(chunk=selection.chunk.detach())
        ids, delay = self._episode_ids(len(trace.candidates)), round.request.delay
        space, window = self.selector.space_for(trace.candidates, delay), self.selector.window(delay)
        event = RoundEvent(
            round.number, round.seeds, trace.candidates.detach(), kept, trace.path, k, times, ids, space, window
        )
        with self.lock:
            if rehearsed is None or not self.k_given:
                self.kept[round.number] = round, trace.path, k
            if rehearsed is None:
                self.last = kept
                self.counters.add(event)
        self.drop_old_rounds()
        if rehearsed is None:
            self.selector.remember(kept)
        (self.listeners if rehearsed is None else rehearsed).emit(event)

    # ---- used by the handle, overrides and listeners

    def reset_history(self) -> None:
        """Start a new episode in every row: the previous chunk is forgotten."""
        self.selector.reset_history()
        self.episodes.reset()

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows, after the other episodes of the batch have ended."""
        self.selector.keep_rows(rows)
        self.episodes.keep(rows)

    def at_steps(self, function: Callable[..., T]) -> Callable[..., T]:
        """A function of the policy's code, to be called with the number of denoising steps that is set now."""
        return self._call_at(self.steps, function)

    def _call_at(self, steps: int | None, function: Callable[..., T]) -> Callable[..., T]:
        setting = None if steps is None else self.adapter.steps_setting(self.owner)
        if steps is None or setting is None:
            return function
        return partial(call_at_steps, self.stepping, setting, steps, function)

    def drop_old_rounds(self) -> None:
        """Those that can no longer be replayed."""
        keep = self.keep if self.k_given else max(self.keep, KEEP_UNTIL_K_IS_FOUND)
        with self.lock:
            while len(self.kept) > keep:
                self.kept.pop(min(self.kept))

    @property
    def rehearsed(self) -> Listeners | None:
        """Who is told of this thread's rounds while they are not executed; None while they are, see `settings.rehearsal`."""
        return getattr(self.rehearsing, "listeners", None)

    def compiled_step(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A denoising step as an override should call it: compiled if ``compile`` is set, no hook would be bypassed, and the
        sampler around it is not compiled itself. ``function`` must be long-lived, since the result is cached by it.
        """
        if not self.compile or self.paths.obstacle or torch.compiler.is_compiling():
            return function
        with self.lock:
            if function not in self.compiled:
                self.compiled[function] = torch.compile(function)
            return self.compiled[function]

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        # A copied policy gets a copied engine, registered in the memo first because its parts refer back to it. Locks cannot
        # be copied; kept rounds and compiled steps belong to the original.
        twin = memo[id(self)] = Engine.__new__(Engine)
        own = {
            "lock": threading.Lock(), "checking": threading.RLock(), "stepping": threading.RLock(), "usage": Usage(),
            "rehearsing": threading.local(), "trials": (), "kept": {}, "compiled": {}, "bypassed": {},
        }  # fmt: skip
        parts = {name: value for name, value in vars(self).items() if name not in own}
        vars(twin).update(copy.deepcopy(parts, memo), **own)
        return twin

    def __reduce__(self) -> Any:
        """A pickled policy is the policy alone: KeyStone stays behind."""
        return type(None), ()


def _describe(error: Exception) -> str:
    return f"failed with {type(error).__name__}: {error}"
