"""One round of an attached policy, from top to bottom: noise → path → draw → verify → select → emit → chunk.

The override of a policy's sampling method builds a `SampleRequest` and returns ``self._keystone.run(request)``. The engine
lives on the overridden modules as ``_keystone``: plain Python, so it is neither a parameter nor in the ``state_dict``.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.check import Comparison, DrawTrace, Finding, compare_with_plain, verify
from keystone_robotics.sample.context import SamplingContext, coarsest_type
from keystone_robotics.sample.counters import Counters
from keystone_robotics.sample.event import Listener, Listeners, RoundEvent
from keystone_robotics.sample.noise import SeededDraws, derive_seed, global_generator, initial_noise, preserve_rng
from keystone_robotics.sample.paths import Paths
from keystone_robotics.sample.request import SampleRequest
from keystone_robotics.sample.seeds import current_seeds, row_seeds, seeds_for_rows
from keystone_robotics.sample.selector import Selector
from keystone_robotics.sample.timer import Mark, RoundTimer
from keystone_robotics.sample.vectorise import sample_vectorised
from keystone_robotics.select import Selection, select

log = logging.getLogger("keystone")


@dataclass(frozen=True)
class SeededRequest:
    """A request with its seeds: everything that its candidates follow from.

    Attributes:
        number: of the round since attaching.
        seeds: one for each row; one for all where the number of rows is not known.
        request: of the override.
        temperature: factor on the initial noise.
        context: in which the round is sampled; None where the sampler is vectorised.
        k: candidates per row that were asked for.
    """

    number: int
    seeds: tuple[int, ...]
    request: SampleRequest
    temperature: float
    context: SamplingContext | None
    k: int

    def draw(self, path: str, k: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Candidates (B, K, T, D), and all noise that went in (B * K, ...)."""
        spec = self.request.noise
        if spec is None:
            return sample_vectorised(self.request.single, k, self.seeds[0], self.temperature), ()
        method = self.request.shared if path == "fast" else self.request.wide
        assert method is not None
        noise = initial_noise(self.seeds, k, spec.shape, spec.uniform)
        if self.temperature != 1.0:
            noise *= self.temperature
        noise = noise.to(spec.device, spec.dtype)
        with contextlib.ExitStack() as stack:
            later: list[Tensor] = []
            if (
                self.request.stochastic
            ):  # what the sampler draws on its way is replaced, but would move the global generator
                stack.enter_context(preserve_rng(spec.device))
                later = stack.enter_context(SeededDraws(self.seeds, k)).drawn
            candidates = method(noise, k)
        return candidates.reshape(spec.batch, k, *candidates.shape[1:]), (noise, *later)


@dataclass(eq=False)
class Engine:
    """What is attached to a policy.

    Attributes:
        adapter: how this family of policies is sampled K wide.
        owner: the object that was attached to.
        selector: how one candidate is selected.
        k: candidates per round; 1 leaves the policy's own code untouched.
        k_given: K is final; not so with ``k="auto"`` before it is known.
        temperature: factor on the initial noise.
        seed: of all rounds, or None to draw each round's seed from torch's global generator.
        compile: compile the denoising step.
        check: make the self-check in the first round; "all" compares every candidate, not only three.
        keep: how many of the last rounds can be replayed.
        paths: what is known about the fast path.
        path: on which the last round was drawn; "undecided" before the first.
        verified: the self-check has passed, or was not wanted.
        finding: what the self-check found; None before it was made.
        last: the selection of the last round.
        encoder_names: of the adapter's encoder methods.
        overridden: (module, its class, its class while attached), in order.
    """

    adapter: Adapter
    owner: Any
    selector: Selector
    k: int
    k_given: bool = True
    temperature: float = 1.0
    seed: int | None = None
    compile: bool = False
    check: Any = True
    keep: int = 0
    encoder_names: tuple[str, ...] = ()
    paths: Paths = field(default_factory=Paths)
    path: str = "undecided"
    verified: bool = False
    finding: Finding | None = None
    last: Selection | None = field(default=None, repr=False)
    rounds: int = 0
    counters: Counters = field(default_factory=Counters)
    listeners: Listeners = field(default_factory=Listeners)
    timer: RoundTimer = field(default_factory=RoundTimer, repr=False)
    overridden: list[tuple[Any, type, type]] = field(default_factory=list, repr=False)
    kept: dict[int, tuple[SeededRequest, str, int]] = field(default_factory=dict, repr=False)
    lock: Any = field(default_factory=threading.Lock, repr=False)
    checking: Any = field(default_factory=threading.RLock, repr=False)
    compiled: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict, repr=False)
    bypassed: dict[Any, Any] = field(default_factory=dict, repr=False)  # of `kit.bypass`
    _rehearsing: threading.local = field(default_factory=threading.local, repr=False)
    _warned: bool = False

    # ---- the round

    def run(self, request: SampleRequest) -> Any:
        """One round: what the caller of the overridden method gets, made from the selected chunk of each row."""
        k = self.k  # read once: it may change while the round runs
        if self.is_own_code(k):
            return self.run_single(request.single, request.chunk)
        with self.timer.round():
            round = self._next_round(request, k)  # noise
            trace = self._draw(round)  # path, draw, verify
            begin = Mark.now()
            selection = self.selector.select(trace.candidates, request.delay)  # select
            self._finish(round, trace, selection, Mark.now().host - begin.host)  # emit
        return request.restore(selection.chunk)  # chunk

    def run_single(self, single: Callable[[], Any], chunk: Callable[[Any], Tensor] = lambda value: value) -> Any:
        """The policy's own code, bit for bit. It is timed and reported only if there are listeners.

        Args:
            single: the policy's own method with its arguments.
            chunk: takes the chunks (B, T, D) out of what it returns.
        """
        if not self.listeners and torch.compiler.is_compiling():  # nothing to time, and no reason to break the graph
            return single()
        listeners = self._rehearsing.listeners if self._is_rehearsal else self.listeners
        with self.timer.round():
            if not listeners:
                return single()
            self.timer.begin()
            value = single()
            try:
                candidates = chunk(value).detach().unsqueeze(1)
                sampled = self.wait(candidates.device)
                selection = select(candidates, "first")
                times = self.timer.end(candidates.device, sampled, Mark.now().host - sampled.host)
            except Exception as error:  # a chunk that is not finite, say: with K = 1 that is the policy's own affair
                log.debug("KeyStone: a round with K = 1 is not reported: %s", error)
                return value
            with self.lock:
                number = self.rounds
                self.rounds += not self._is_rehearsal
            listeners.emit(RoundEvent(number, (), candidates, selection, "own", 1, times))
        return value

    # ---- noise

    @property
    def untouched(self) -> bool:
        """The policy's own code runs: one candidate, its own noise."""
        return self.is_own_code(self.k)

    def is_own_code(self, k: int) -> bool:
        """Whether a round with K candidates is the policy's own code."""
        return k == 1 and self.temperature == 1.0 and self.seed is None and current_seeds(id(self)) is None

    def _next_round(self, request: SampleRequest, k: int) -> SeededRequest:
        with self.lock:
            number = self.rounds
            self.rounds += not self._is_rehearsal
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
        return SeededRequest(number, seeds, request, self.temperature, SamplingContext.of(request), k)

    # ---- path, draw, verify

    def _draw(self, round: SeededRequest) -> DrawTrace:
        if self._is_verified(round):
            return self._draw_verified(round)
        with self.checking:  # threads wait for the first to have verified
            return self._draw_verified(round) if self._is_verified(round) else self._draw_and_verify(round)

    def _may_be_fast(self, round: SeededRequest) -> bool:
        """Whether the fast path is offered and wanted, and nothing is known against it in this context."""
        if round.request.shared is None or not self.paths.fast or round.context in self.paths.refused:
            return False
        return round.k > 1 or round.context in self.paths.proved  # one candidate proves nothing about several

    def _is_verified(self, round: SeededRequest) -> bool:
        return self.verified and (not self._may_be_fast(round) or round.context in self.paths.proved)

    def _draw_verified(self, round: SeededRequest) -> DrawTrace:
        """On the fast path where it was proved; should it fail after all, on the plain one."""
        if not self._may_be_fast(round):
            return self._sample(round, "plain")
        try:
            return self._sample(round, "fast")
        except torch.cuda.OutOfMemoryError:  # with one candidate: the plain path takes no less
            raise
        except Exception as error:
            problem = _describe(error)
        # Out of the handler, whose error keeps what the fast path had in memory.
        trace = self._sample(round, "plain")  # fails too, if it is the observation that is wrong
        assert round.context is not None
        self.paths.fail(round.context, problem)
        return trace

    def _draw_and_verify(self, round: SeededRequest) -> DrawTrace:
        """The first time in a context: compare with the policy's own single calls, and settle on a path."""
        problem, plain = "", None
        if self._may_be_fast(round):
            assert round.context is not None
            try:
                trace, finding = self._sample_and_compare(round, "fast")
                if finding.doubtful and not finding.problem:
                    plain = self._sample_and_compare(round, "plain")
                    finding = compare_with_plain(finding, plain[1])
                problem = finding.problem
            except torch.cuda.OutOfMemoryError:  # the plain path takes no less, and nothing is wrong with this one
                raise
            except Exception as error:  # whatever it is: the plain path does without it, or fails for the same reason
                problem = _describe(error)
            if not problem:
                if finding.k > 1:
                    self.paths.proved.add(round.context)
                self._conclude(finding, round.k)
                return trace
        trace, finding = plain or self._sample_and_compare(round, "plain")
        self._conclude(finding, round.k)
        if problem and round.context is not None:
            self.paths.refuse(round.context, problem)
        return trace

    def _sample(self, round: SeededRequest, path: str) -> DrawTrace:
        """Draw K candidates; where the device's memory is too small for them, half as many, and so on."""
        k = round.k
        while True:
            self.timer.begin()
            try:
                with self.timer.count(self.encoder_names) as calls:
                    candidates, noises = round.draw(path, k)
            except torch.cuda.OutOfMemoryError:
                if k == 1:
                    raise
                k //= 2
            else:
                break
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if not self._warned:
                self._warned = True
                log.warning(
                    "KeyStone: out of memory at K=%d; such rounds go on with K=%d (a smaller k avoids the retries)",
                    k * 2,
                    k,
                )
        if candidates.ndim != 4:
            raise KeystoneError(
                f"the sampler returned chunks of shape {tuple(candidates.shape[2:])} for each observation: expected "
                "(T, D), steps and action dimensions"
            )
        return DrawTrace(candidates, noises, calls, path, self.wait(candidates.device))

    def _sample_and_compare(self, round: SeededRequest, path: str) -> tuple[DrawTrace, Finding]:
        trace = self._sample(round, path)
        spec, precision = round.request.noise, round.request.precision
        dtype = trace.candidates.dtype if spec is None else spec.dtype
        if precision is None and spec is not None:
            modules = [module for module, _ in self.adapter.overrides(self.owner)]
            # A fast path that fails the check costs some time, a plain one the policy: that one gets the benefit of the doubt.
            encoders = self.adapter.encoder_modules(self.owner) if trace.path == "fast" else None
            precision = coarsest_type(modules, dtype, spec.device, encoders)
        how = Comparison(self.check == "all", precision or dtype, round.temperature > 0)
        return trace, verify(round.request, trace, how, self.timer)

    def _conclude(self, finding: Finding, k: int) -> None:
        if finding.problem:
            raise KeystoneError(f"KeyStone's self-check failed: {finding.problem}")
        # One candidate, where memory was too small for more, proves nothing about several.
        self.verified, self.finding = self.verified or finding.k > 1 or k == 1, finding
        log.info("KeyStone self-check passed: %s", finding)

    # ---- emit

    def _finish(self, round: SeededRequest, trace: DrawTrace, selection: Selection, seconds: float) -> None:
        times = self.timer.end(trace.candidates.device, trace.sampled, seconds)
        self.path = trace.path
        k = trace.candidates.shape[1]
        # What outlives the round holds no autograd graph.
        kept = selection._replace(chunk=selection.chunk.detach())
        event = RoundEvent(round.number, round.seeds, trace.candidates.detach(), kept, trace.path, k, times)
        with self.lock:
            if self.keep and not (self._is_rehearsal and self.k_given):
                self.kept[round.number] = round, trace.path, k
            if not self._is_rehearsal:
                self.last = kept
                self.counters.add(event)
        self.forget_kept()
        if self._is_rehearsal:
            self._rehearsing.listeners.emit(event)
            return
        self.selector.remember(kept)
        self.listeners.emit(event)

    # ---- what the handle, overrides and listeners ask for

    @staticmethod
    def wait(device: torch.device) -> Mark:
        """When the candidates are there; not waiting for others: a program may have more to do on this GPU."""
        mark = Mark.now()
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        elif device.type != "cpu":
            getattr(getattr(torch, device.type, None), "synchronize", lambda: None)()
        return Mark(Mark.now().host, mark.event)

    def set_k(self, k: int) -> None:
        """From the next round on; ends ``k="auto"``."""
        with self.checking:  # not in the middle of a self-check
            if self.finding is not None and self.finding.k == 1 < k:
                self.verified = not self.check  # one candidate proves nothing about several: check again
            self.k, self.k_given = k, True

    def forget_kept(self) -> None:
        """Drop kept rounds beyond the number to keep."""
        with self.lock:
            while len(self.kept) > self.keep:
                self.kept.pop(min(self.kept))

    def replay(self, number: int, k: int | None = None) -> Tensor:
        """The candidates (B, K, T, D) of a kept round, drawn again on its path; another K draws more or fewer of them."""
        if number not in self.kept:
            have = (
                f"kept: {sorted(self.kept)}" if self.kept else "none is kept: attach(..., keep=8) keeps the last eight"
            )
            raise KeyError(f"round {number} cannot be replayed; {have}")
        round, path, drawn = self.kept[number]
        with self.timer.round():
            return round.draw(path, k or drawn)[0]

    @contextlib.contextmanager
    def rehearsal(self, *listeners: Listener) -> Iterator[None]:
        """Rounds within this block and thread are not executed by anybody: neither counted nor remembered, and reported to
        these listeners alone.
        """
        before = getattr(self._rehearsing, "listeners", None)
        self._rehearsing.listeners = Listeners(listeners)
        try:
            yield
        finally:
            self._rehearsing.listeners = before

    @property
    def _is_rehearsal(self) -> bool:
        return getattr(self._rehearsing, "listeners", None) is not None

    def compiled_step(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A denoising step as an override should call it: compiled, where that was asked for, nothing is on the network that
        would be bypassed, and the sampler around it is not compiled. Give a function that lives on.
        """
        if not self.compile or self.paths.obstacle or torch.compiler.is_compiling():
            return function
        with self.lock:
            if function not in self.compiled:
                self.compiled[function] = torch.compile(function)
            return self.compiled[function]

    def __deepcopy__(self, memo: dict[int, Any]) -> Engine:
        # A copied policy gets an engine of its own. It is noted before its parts are copied, because they point back to it;
        # locks cannot be copied, and kept rounds and compiled steps belong to the original.
        twin = memo[id(self)] = Engine.__new__(Engine)
        own = {
            "lock": threading.Lock(), "checking": threading.RLock(), "_rehearsing": threading.local(),
            "kept": {}, "compiled": {}, "bypassed": {},
        }  # fmt: skip
        parts = {name: value for name, value in vars(self).items() if name not in own}
        vars(twin).update(copy.deepcopy(parts, memo), **own)
        return twin


def _describe(error: Exception) -> str:
    return f"failed with {type(error).__name__}: {error}"
