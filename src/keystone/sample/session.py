"""What an attached module knows while it samples: K, where noise comes from, who chooses."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from keystone.errors import KeystoneError
from keystone.sample.check import Finding, count_calls, verify
from keystone.sample.noise import SeededDraws, aside, global_generator, initial_noise, mix
from keystone.sample.vectorise import sample_vectorised

log = logging.getLogger("keystone")

#: Seeds that the caller gave within a `Session.seeded` block, in this thread or task, by the session's id.
_given_seeds: contextvars.ContextVar[Mapping[int, tuple[int, ...] | int]] = contextvars.ContextVar(
    "keystone_seeds", default=MappingProxyType({})
)


@dataclass(frozen=True)
class Drawn:
    """The candidates of one round, before one is chosen.

    Attributes:
        number: of the round, counted from 0 since `keystone.attach`.
        seeds: one for each row; the noise of the round follows from them.
        candidates: (B, K, T, D) in the space in which the policy's sampler returns them.
        delay: steps of the chunk that will have passed when it arrives (real-time chunking).
        seconds: time taken to draw them; on a GPU including what was left of the encoding when it began.
    """

    number: int
    seeds: tuple[int, ...]
    candidates: Tensor
    delay: int
    seconds: float


class Draws(NamedTuple):
    """Candidates (B, K, T, D), all noise that went in (B * K, ...), and how often each encoder was called."""

    candidates: Tensor
    noises: list[Tensor]
    calls: dict[str, int]


class Choose(Protocol):
    """Reduces the candidates of a round to (B, T, D)."""

    def __call__(self, drawn: Drawn) -> Tensor: ...


@dataclass
class Session:
    """State that lives on the swapped module; plain Python, so it is neither a parameter nor in the ``state_dict``.

    Attributes:
        k: candidates per round; 1 leaves the policy's own path untouched.
        temperature: factor on the initial noise.
        seed: of all rounds, or None to draw each round's seed from torch's global generator.
        choose: who reduces K candidates to one.
        encoders: the (object, method name) pairs that encode the context; called once per observation, whatever K.
        checked: the self-check has passed, or was not wanted.
        thorough: it compares all candidates, not only three.
        finding: what it found.
        owner: the object that was attached to.
        swapped: (module, its class, its class while attached), in the order in which they were swapped.
    """

    k: int
    temperature: float
    seed: int | None
    choose: Choose
    encoders: Sequence[tuple[Any, str]] = ()
    checked: bool = False
    thorough: bool = False
    finding: Finding | None = None
    owner: Any = field(default=None, repr=False)
    swapped: list[tuple[Any, type, type]] = field(default_factory=list, repr=False)
    rounds: int = 0
    keep: int = 0
    kept: dict[int, Callable[[], Tensor]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock, repr=False)
    checking: Any = field(default_factory=threading.RLock, repr=False)
    warned: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        # A copied policy gets a session of its own. It is noted before its parts are copied, because its handle points back to
        # it; a lock cannot be copied, and kept rounds belong to the original.
        twin = memo[id(self)] = Session.__new__(Session)
        parts = {name: value for name, value in vars(self).items() if name not in ("lock", "checking", "kept")}
        vars(twin).update(copy.deepcopy(parts, memo), lock=threading.Lock(), checking=threading.RLock(), kept={})
        return twin

    @contextlib.contextmanager
    def seeded(self, seeds: Sequence[int] | int) -> Iterator[None]:
        """Rounds within this block take their noise from ``seeds``: one for each row of the batch, or one for all."""
        given: int | tuple[int, ...]
        given = _seed(seeds) if isinstance(seeds, Integral) else tuple(_seed(seed) for seed in seeds)  # type: ignore[union-attr]
        token = _given_seeds.set({**_given_seeds.get(), id(self): given})
        try:
            yield
        finally:
            _given_seeds.reset(token)

    @property
    def untouched(self) -> bool:
        """The policy's own code runs, bit for bit: one candidate, its own noise."""
        own_noise = self.seed is None and id(self) not in _given_seeds.get()
        return self.k == 1 and self.temperature == 1.0 and own_noise

    def round(
        self,
        original: Callable[[], Tensor],
        draw: Callable[[Tensor, int], Tensor],
        *,
        batch: int,
        shape: Sequence[int],
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        uniform: bool = False,
        delay: int = 0,
        stochastic: bool = False,
        seed: int | None = None,
        precision: torch.dtype | None = None,
    ) -> Tensor:
        """One round at a seam: K-wide noise in, one chunk per row out.

        Args:
            original: the seam's own method with its own arguments, returning (B, T, D); draws its own noise.
            draw: maps initial noise (B * K, *shape) and K to candidates (B * K, T, D).
            batch: B.
            shape: of one row of initial noise.
            device: of the noise.
            dtype: of the noise.
            uniform: the policy starts from uniform noise on [-1, 1] instead of a normal one.
            delay: of real-time chunking, in steps.
            stochastic: the sampler draws more noise on its way; it is seeded too.
            seed: that the policy's own method was called with; takes the place of the global generator.
            precision: the coarsest type the policy computes in, where its weights are not torch's and cannot tell.
        """
        if self.untouched:
            return original()
        number, seeds = self._next(batch, seed)

        def draw_candidates(k: int) -> Draws:
            noise = initial_noise(seeds, k, shape, uniform)
            if self.temperature != 1.0:
                noise *= self.temperature
            noise = noise.to(device, dtype)
            with contextlib.ExitStack() as stack:
                calls = stack.enter_context(count_calls(() if self.checked else self.encoders))
                later: list[Tensor] = []
                if stochastic:  # what the sampler draws on its way is replaced, but would move the global generator
                    stack.enter_context(aside(device))
                    later = stack.enter_context(SeededDraws(seeds, k)).drawn
                candidates = draw(noise, k)
            return Draws(candidates.reshape(batch, k, *candidates.shape[1:]), [noise, *later], calls)

        # The check counts calls on objects that all threads share: until it has passed, they wait for each other.
        with contextlib.nullcontext() if self.checked else self.checking:
            begin = time.perf_counter()  # not synchronised: the denoising is launched while the encoder still runs
            draws = self._with_less_memory(draw_candidates)
            seconds = _now(device) - begin
            if not self.checked:
                compare = range(draws.candidates.shape[1]) if self.thorough else None
                finding = verify(
                    original,
                    draws.candidates,
                    draws.noises,
                    draws.calls,
                    self.encoders,
                    uniform,
                    compare,
                    precision or self._precision(dtype, device),
                    distinct=self.temperature > 0,
                )
                self._conclude(finding)
        return self._finish(Drawn(number, seeds, draws.candidates, delay, seconds), draw_candidates)

    def vectorised_round(self, original: Callable[[], Tensor]) -> Tensor:
        """One round at a method of which nothing is known but that it draws noise and returns (B, T, D)."""
        if self.untouched:
            return original()
        number, seeds = self._next(None)

        def draw_candidates(k: int) -> Draws:
            return Draws(sample_vectorised(original, k, seeds[0], self.temperature), [], {})

        begin = time.perf_counter()
        candidates = self._with_less_memory(draw_candidates).candidates
        seconds = _now(candidates.device) - begin
        if not self.checked:
            self._conclude(verify(original, candidates, [], {}, (), compare=(), distinct=self.temperature > 0))
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
        given = _given_seeds.get().get(id(self))
        if isinstance(given, tuple):
            if batch is None:
                return number, (mix(*given),)
            if len(given) != batch:
                raise ValueError(
                    f"{len(given)} seeds were given for a batch of {batch} observations: give one for each"
                )
            return number, given
        if given is not None:
            base = mix(given)
        elif self.seed is not None:
            base = mix(self.seed, number)
        elif own is not None:
            base = mix(own)
        else:
            with global_generator:
                base = int(torch.randint(2**63 - 1, ()))
        return number, tuple(mix(base, row) for row in range(batch or 1))

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

    def _precision(self, dtype: torch.dtype, device: torch.device | str) -> torch.dtype:
        """The coarsest type that takes part in the sampling: of the noise, of a weight, or of autocast."""
        modules = [module for module, _, _ in self.swapped if isinstance(module, torch.nn.Module)]
        types: set[torch.dtype] = {dtype, *(weight.dtype for module in modules for weight in module.parameters())}
        one = torch.ones(1, 1, device=device)
        types.add((one @ one).dtype)  # tells autocast's type in every version of torch
        if one.is_cuda and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
            types.add(torch.float16)  # TF32 keeps as many digits
        return max((kind for kind in types if kind.is_floating_point), key=lambda kind: torch.finfo(kind).eps)

    def _conclude(self, finding: Finding) -> None:
        if finding.problem:
            raise KeystoneError(f"KeyStone's self-check failed in the first round: {finding.problem}")
        self.checked, self.encoders, self.finding = True, (), finding
        log.info("KeyStone self-check passed: %s", finding)

    def replay(self, number: int) -> Tensor:
        """Draw the candidates of a kept round again: (B, K, T, D)."""
        if number not in self.kept:
            have = (
                f"kept: {sorted(self.kept)}" if self.kept else "none is kept: attach(..., keep=8) keeps the last eight"
            )
            raise KeyError(f"round {number} cannot be replayed; {have}")
        return self.kept[number]()


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"seed {value!r}: expected a whole number")
    return int(value)


def _now(device: torch.device | str) -> float:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
