"""What an attached module knows while it samples: K, where noise comes from, who chooses."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.check import Finding, count_calls, verify
from keystone_robotics.sample.drawn import Choose, Draw, Drawn, Draws, Tuner
from keystone_robotics.sample.noise import SeededDraws, aside, global_generator, initial_noise, mix
from keystone_robotics.sample.paths import Paths
from keystone_robotics.sample.seeds import given_to, giving, rows_from, spread
from keystone_robotics.sample.situation import Situation, coarsest_type
from keystone_robotics.sample.vectorise import sample_vectorised

log = logging.getLogger("keystone")


@dataclass
class Session:
    """State that lives on the swapped module; plain Python, so it is neither a parameter nor in the ``state_dict``.

    Attributes:
        k: candidates per round; 1 leaves the policy's own path untouched.
        temperature: factor on the initial noise.
        seed: of all rounds, or None to draw each round's seed from torch's global generator.
        choose: who reduces K candidates to one.
        encoders: the (object, method name) pairs that encode the context; called once per observation, whatever K.
        sampling: the modules that take part in the sampling, whose weights tell how exact it can be.
        encoding: those within them that only encode: of no matter to how exact the fast path can be.
        checked: the self-check has passed, or was not wanted.
        thorough: it compares all candidates, not only three.
        finding: what it found.
        paths: on which rounds are drawn.
        compile: compile the denoising step.
        tuner: finds K in the first round; None once it has.
        owner: the object that was attached to.
        swapped: (module, its class, its class while attached), in the order in which they were swapped.
    """

    k: int
    temperature: float
    seed: int | None
    choose: Choose
    encoders: Sequence[tuple[Any, str]] = ()
    sampling: Sequence[Any] = field(default=(), repr=False)
    encoding: Sequence[Any] = field(default=(), repr=False)
    checked: bool = False
    thorough: bool = False
    finding: Finding | None = None
    paths: Paths = field(default_factory=Paths)
    compile: bool = False
    tuner: Tuner | None = field(default=None, repr=False)
    owner: Any = field(default=None, repr=False)
    swapped: list[tuple[Any, type, type]] = field(default_factory=list, repr=False)
    rounds: int = 0
    keep: int = 0
    kept: dict[int, Callable[[], Tensor]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock, repr=False)
    checking: Any = field(default_factory=threading.RLock, repr=False)
    compiled: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict, repr=False)
    bypassed: dict[Any, Any] = field(default_factory=dict, repr=False)  # of `keystone_robotics.sample.kit.bypass`
    warned: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        # A copied policy gets a session of its own. It is noted before its parts are copied, because its handle points back to
        # it; a lock cannot be copied, and kept rounds and compiled steps belong to the original.
        twin = memo[id(self)] = Session.__new__(Session)
        own = {"lock": threading.Lock(), "checking": threading.RLock(), "kept": {}, "compiled": {}, "bypassed": {}}
        parts = {name: value for name, value in vars(self).items() if name not in own}
        vars(twin).update(copy.deepcopy(parts, memo), **own)
        return twin

    def seeded(self, seeds: Sequence[int] | Iterator[int] | int) -> AbstractContextManager[None]:
        """Rounds within this block take their noise from ``seeds``, see `keystone_robotics.sample.seeds.giving`."""
        return giving(id(self), seeds)

    @property
    def untouched(self) -> bool:
        """The policy's own code runs, bit for bit: one candidate, its own noise."""
        return self.tuner is None and self._is_own_code(self.k)

    def _is_own_code(self, k: int) -> bool:
        """Whether rounds with K candidates are the policy's own code."""
        own_noise = self.seed is None and given_to(id(self)) is None
        return k == 1 and self.temperature == 1.0 and own_noise

    def round(
        self,
        original: Callable[[], Tensor],
        draw: Draw,
        *,
        fast: Draw | None = None,
        batch: int,
        shape: Sequence[int],
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        uniform: bool = False,
        delay: int = 0,
        guided: bool = False,
        stochastic: bool = False,
        seed: int | None = None,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        """One round at a seam: K-wide noise in, one chunk per row out.

        Args:
            original: the seam's own method with its own arguments, returning (B, T, D); draws its own noise.
            draw: maps initial noise (B * K, *shape) and K to candidates (B * K, T, D).
            fast: the same in less time. It is tried in the first round of every `Situation`, if wanted, and kept if the
                self-check finds it exact; if it does not, or if ``fast`` raises, ``draw`` is used in that situation.
            batch: B.
            shape: of one row of initial noise.
            device: of the noise.
            dtype: of the noise.
            uniform: the policy starts from uniform noise on [-1, 1] instead of a normal one.
            delay: of real-time chunking, in steps.
            guided: the chunk is drawn towards a previous one, with or without delay.
            stochastic: the sampler draws more noise on its way; it is seeded too.
            seed: that the policy's own method was called with; takes the place of the global generator.
            precision: the coarsest type the policy computes in, where its weights are not torch's and cannot tell.
        """
        if self.untouched:
            return original()
        self._reached()
        number, seeds = self._next(batch, seed)

        def draw_with(method: Draw, k: int, encoders: Sequence[tuple[Any, str]] = ()) -> Draws:
            noise = initial_noise(seeds, k, shape, uniform)
            if self.temperature != 1.0:
                noise *= self.temperature
            noise = noise.to(device, dtype)
            with contextlib.ExitStack() as stack:
                calls = stack.enter_context(count_calls(encoders))
                later: list[Tensor] = []
                if stochastic:  # what the sampler draws on its way is replaced, but would move the global generator
                    stack.enter_context(aside(device))
                    later = stack.enter_context(SeededDraws(seeds, k)).drawn
                candidates = method(noise, k)
            return Draws(candidates.reshape(batch, k, *candidates.shape[1:]), [noise, *later], calls)

        def sample(method: Draw, encoders: Sequence[tuple[Any, str]] = ()) -> tuple[Drawn, Draws]:
            begin = time.perf_counter()  # not synchronised: the denoising is launched while the encoder still runs
            draws = self._with_less_memory(partial(draw_with, method, encoders=encoders))
            return Drawn(number, seeds, draws.candidates, delay, _now(device) - begin), draws

        def attempt(method: Draw, path: str) -> tuple[Drawn, Finding]:
            drawn, draws = sample(method, self.encoders)
            compare = range(draws.candidates.shape[1]) if self.thorough else None
            # A fast path that fails the check costs some time, a plain one the policy: that one gets the benefit of the doubt.
            encoding = self.encoding if path == "fast" else None
            coarsest = precision or coarsest_type(self.sampling, dtype, device, encoding)
            distinct = self.temperature > 0
            return drawn, verify(
                original, *draws, self.encoders, uniform, compare, coarsest, distinct=distinct, path=path
            )

        now = Situation.now(batch, delay, guided, dtype, device)
        if self.k == 1 and now not in self.paths.proved:  # one candidate proves nothing about several
            fast = None
        # Asked once: K, and with it the answer, may change during the round, and only those who wait may count calls, on
        # objects that all threads share.
        proved = self.checked and self.paths.settled(fast, now)
        with contextlib.nullcontext() if proved else self.checking:
            if proved or (self.checked and self.paths.settled(fast, now)):  # by another thread, in the meantime
                method, drawn = self.paths.draw(lambda method: sample(method)[0], fast, draw, now)
            else:
                method, drawn = self.paths.settle(attempt, self._conclude, fast, draw, now)
        if self._tuned(original, partial(draw_with, method), batch, device):
            if self.untouched:
                return original()
            drawn, _ = sample(method)
        return self._finish(drawn, partial(draw_with, method))

    def _reached(self) -> None:
        tuner = self.tuner
        if tuner is not None:
            tuner.reached()

    def step(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A denoising step as a seam should call it: compiled, where that was asked for, nothing is on the network that would
        be passed by, and the sampler around it is not. Give a function that lives on.
        """
        if not self.compile or self.paths.obstacle or torch.compiler.is_compiling():
            return function
        with self.lock:
            if function not in self.compiled:
                self.compiled[function] = torch.compile(function)
            return self.compiled[function]

    def vectorised_round(self, original: Callable[[], Tensor]) -> Tensor:
        """One round at a method of which nothing is known but that it draws noise and returns (B, T, D)."""
        if self.untouched:
            return original()
        self._reached()
        number, seeds = self._next(None)

        def draw_candidates(k: int) -> Draws:
            return Draws(sample_vectorised(original, k, seeds[0], self.temperature), [], {})

        begin = time.perf_counter()
        candidates = self._with_less_memory(draw_candidates).candidates
        seconds = _now(candidates.device) - begin
        if not self.checked:
            self._conclude(verify(original, candidates, [], {}, (), compare=(), distinct=self.temperature > 0))
        if self._tuned(original, draw_candidates, candidates.shape[0], candidates.device):
            if self.untouched:
                return original()
            begin = time.perf_counter()
            candidates = self._with_less_memory(draw_candidates).candidates
            seconds = _now(candidates.device) - begin
        return self._finish(Drawn(number, seeds, candidates, 0, seconds), draw_candidates)

    def _finish(self, drawn: Drawn, draw_candidates: Callable[[int], Draws]) -> Tensor:
        """Keep what replaying needs, if asked to, and choose."""
        if drawn.candidates.ndim != 4:
            raise KeystoneError(
                f"the sampler returned chunks of shape {tuple(drawn.candidates.shape[2:])} for each observation: expected "
                "(T, D), steps and action dimensions"
            )
        if self.keep:
            k = drawn.candidates.shape[1]
            with self.lock:
                self.kept[drawn.number] = lambda: draw_candidates(k).candidates
                while len(self.kept) > self.keep:
                    self.kept.pop(min(self.kept))
        return self.choose(drawn)

    def _next(self, batch: int | None, own: int | None = None) -> tuple[int, tuple[int, ...]]:
        """The number of this round and the seeds of its rows; one for all where the number of rows is not known."""
        with self.lock:
            number, self.rounds = self.rounds, self.rounds + 1
        given = given_to(id(self))
        if given is not None:
            return number, rows_from(given, batch)
        if self.seed is not None:
            base = mix(self.seed, number)
        elif own is not None:
            base = mix(own)
        else:
            with global_generator:
                base = int(torch.randint(2**63 - 1, ()))
        return number, spread(base, batch)

    def _tuned(
        self,
        original: Callable[[], Tensor],
        draw_candidates: Callable[[int], Draws],
        batch: int,
        device: torch.device | str,
    ) -> bool:
        """With ``k="auto"``, after the self-check of the first round: set K. Whether it was set just now."""
        if self.tuner is None:
            return False

        def draw(k: int) -> Tensor:
            if not self._is_own_code(k):
                return draw_candidates(k).candidates
            with aside(device):  # the policy's own code draws from the global generator
                return original()

        with self.checking:  # threads wait for the first to have found it
            if self.tuner is not None:
                self.k = self.tuner(draw, batch, torch.device(device))
                self.tuner = None
        return True

    def _with_less_memory(self, draw_candidates: Callable[[int], Draws]) -> Draws:
        """Draw K candidates; where the device's memory is too small for them, half as many, and so on."""
        k = self.k
        while True:
            try:
                return draw_candidates(k)
            except torch.cuda.OutOfMemoryError:  # noqa: PERF203 (that is what the loop is for)
                if k == 1:
                    raise
                k //= 2
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                if not self.warned:
                    self.warned = True
                    log.warning(
                        "KeyStone: out of memory at K=%d; such rounds go on with K=%d (a smaller k avoids the retries)",
                        k * 2,
                        k,
                    )

    def _conclude(self, finding: Finding) -> None:
        if finding.problem:
            raise KeystoneError(f"KeyStone's self-check failed: {finding.problem}")
        self.checked, self.finding, self.paths.last = True, finding, finding.path
        log.info("KeyStone self-check passed: %s", finding)

    def replay(self, number: int) -> Tensor:
        """Draw the candidates of a kept round again: (B, K, T, D)."""
        if number not in self.kept:
            have = (
                f"kept: {sorted(self.kept)}" if self.kept else "none is kept: attach(..., keep=8) keeps the last eight"
            )
            raise KeyError(f"round {number} cannot be replayed; {have}")
        return self.kept[number]()


def _now(device: torch.device | str) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # not of others: a program may have more to do on this GPU
    return time.perf_counter()
