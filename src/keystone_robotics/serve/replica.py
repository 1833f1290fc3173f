"""A policy with KeyStone attached that computes rounds. It remembers nothing of robots: all that a round needs comes with it,
so that any replica can compute it, in this process or in another (`ray_replicas`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from keystone_robotics.attachment import attach
from keystone_robotics.errors import KeystoneError, TooManyCandidates
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.monitor.mismatch import Comparison
from keystone_robotics.profiling.auto import AutoK
from keystone_robotics.profiling.measure import is_out_of_memory
from keystone_robotics.sample.noise import preserve_rng
from keystone_robotics.sample.seeds import row_seeds
from keystone_robotics.serve.policy import Answer, Interface, Row, Served, load_served
from keystone_robotics.serve.scheduler import LatencyTable, Limits, Setting
from keystone_robotics.spec import Spec

#: Timed rounds of each size and setting before the server listens.
MEASURED = 3


@dataclass(frozen=True)
class RoundInputs:
    """All that a round of B robots needs.

    Attributes:
        rows: one for each robot.
        setting: K and steps.
        seeds: of the rows' noise.
        episodes: whose rows they are, for listeners.
        history: (B, T, D) the robots' last chunks, for rules that look back; None if one has none.
    """

    rows: list[Row]
    setting: Setting
    seeds: list[int]
    episodes: list[Hashable]
    history: torch.Tensor | None = None


@dataclass(frozen=True)
class RoundResult:
    """What a replica has computed.

    Attributes:
        answers: one for each row.
        events: one for all rows, or one for each, in their order; none if the policy drew nothing.
        mismatch: how the policy differs from the one that the alarm was calibrated for; "" if it does not.
    """

    answers: list[Answer]
    events: list[RoundEvent]
    mismatch: str = ""

    @property
    def k(self) -> int | None:
        """Candidates of a robot: fewer than asked for where a GPU's memory was too small; None if nothing was selected."""
        return _fewest(self.events)


@dataclass(frozen=True)
class WarmUp:
    """What a replica has found out before the first request.

    Attributes:
        k: candidates of a robot, at most; found just now if the Spec says "auto".
        horizon: steps of a chunk; None if only the policy knows.
        latency: of every number of robots and setting that fit into memory.
        seconds: that it took.
    """

    k: int
    horizon: int | None = None
    latency: LatencyTable = field(default_factory=LatencyTable, repr=False)
    seconds: float = 0.0


def _fewest(events: list[RoundEvent]) -> int | None:
    return min((one.k for one in events if one.seeds), default=None)


class RoundFailed(KeystoneError):
    """The policy raised in a round.

    Attributes:
        out_of_memory: a smaller K may fit.
    """

    def __init__(self, message: str, out_of_memory: bool = False) -> None:
        super().__init__(message, out_of_memory)
        self.out_of_memory = out_of_memory

    def __str__(self) -> str:
        return str(self.args[0])


class Replicas(Protocol):
    """Where rounds are computed.

    Attributes:
        count: rounds at a time.
        spec: how candidates are drawn and one is selected.
        interface: of the policy.
    """

    count: int
    spec: Spec
    interface: Interface

    def warm_up(self, limits: Limits) -> WarmUp:
        """Run the policy before the server listens."""

    def compute(self, inputs: RoundInputs) -> RoundResult:
        """One round; from ``count`` threads at a time. Raises `RoundFailed`."""

    def close(self) -> None:
        """No round is computed any more."""


@dataclass(frozen=True)
class Loading:
    """How a replica is made, wherever that is.

    Attributes:
        policy: see `load_served`, as ``device``, ``trust_remote_code`` and ``rename``.
        spec: how candidates are drawn and one is selected.
        calibration: of the alarm.
    """

    policy: str
    spec: Spec
    device: str | None = None
    trust_remote_code: bool = False
    rename: Mapping[str, str] | None = None
    calibration: Calibration | None = None

    def replica(self) -> Replica:
        """Load the policy and attach to it."""
        return Replica(
            load_served(self.policy, self.device, self.trust_remote_code, self.rename), self.spec, self.calibration
        )


class Replica:
    """The one in this process; used by one thread.

    Attributes:
        handle: of the policy.

    Args:
        served: the policy.
        spec: how candidates are drawn and one is selected; its K is the most that a robot gets.
        calibration: of the alarm, which the policy is compared with.
        clock: monotonic seconds.
    """

    count = 1

    def __init__(
        self,
        served: Served,
        spec: Spec,
        calibration: Calibration | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served, self.spec, self.interface = served, spec, served.interface
        self.handle: Handle = attach(served.policy, spec)
        self._comparison = None if calibration is None else Comparison(calibration, self.handle)
        self._mismatch = ""
        self._clock = clock
        self._events: list[RoundEvent] = []
        self.handle.subscribe(self._keep)

    def _keep(self, event: RoundEvent) -> None:
        if self._comparison is not None:
            self._mismatch = self._comparison(event)
        self._events.append(event)

    def compute(self, inputs: RoundInputs) -> RoundResult:
        """One round."""
        self._apply(inputs.setting)
        self.handle.history = inputs.history
        self._events.clear()
        twice = iter([*inputs.episodes, *inputs.episodes])  # for a self-check within the first round
        try:
            with self.handle.seeded(inputs.seeds), self.handle.for_episodes(twice):
                answers = self.served.infer(inputs.rows)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:500]}"
            raise RoundFailed(problem, is_out_of_memory(error)) from error
        return RoundResult(answers, list(self._events), self._mismatch)

    def warm_up(self, limits: Limits) -> WarmUp:
        """Self-check, automatic K, and the latency of every setting.

        Raises:
            KeystoneError: if the self-check, or the policy, fails.
        """
        row = self.served.example()
        begin, latency = self._clock(), LatencyTable()
        auto_k = self.handle.engine.listeners.find(AutoK)
        with self.served.warming(), self.handle.rehearsal(*auto_k, self._keep), preserve_rng("cpu"):
            for number in (0, 1):  # K = "auto" is known after the second
                with self.handle.seeded([number]):
                    (answer,) = self._try(self.served.example(number))
            k = self.handle.k
            for setting in limits.settings(k, self.spec.steps):
                for size in limits.sizes(self.interface.batches):
                    self._measure([row] * size, setting, latency)
        self.handle.reset_history()
        self._mismatch = ""  # with another K than robots get
        horizon = None if answer.actions is None else len(answer.actions)
        return WarmUp(k, horizon, latency, self._clock() - begin)

    def _try(self, example: Row) -> list[Answer]:
        try:
            return self.served.infer([example])
        except KeystoneError:
            raise
        except Exception as error:
            name, problem = self.interface.name, f"{type(error).__name__}: {error}"
            raise KeystoneError(f"{name} failed on the observation of its warm-up: {problem}") from error

    def _measure(self, rows: list[Row], setting: Setting, latency: LatencyTable) -> None:
        """Time rounds; what does not fit into memory is not measured."""
        self._apply(setting)
        for attempt in range(MEASURED + 1):
            self._events.clear()
            begin = self._clock()
            try:
                with self.handle.seeded(row_seeds(attempt, len(rows))):
                    self.served.infer(rows)
                fits = (_fewest(self._events) or setting.k) >= setting.k
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                fits = False
            if not fits:
                if len(rows) == 1:
                    raise TooManyCandidates(
                        f"K={setting.k} candidates of one robot do not fit into memory: give a smaller k"
                    )
                return
            if attempt:  # the first compiles, allocates and checks
                latency.measure(len(rows), setting, self._clock() - begin)

    def _apply(self, setting: Setting) -> None:
        """Use this K and this number of steps from now on."""
        if self.handle.k != setting.k:
            self.handle.k = setting.k
        if setting.steps != self.handle.steps:
            self.handle.steps = setting.steps

    def close(self) -> None:
        """Nothing to do: the process ends."""
