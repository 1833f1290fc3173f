"""The training loop, for any policy: it can be interrupted anywhere and ends with the same weights."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import atomic_write
from keystone_study.train.progress import ProgressCallback, no_progress


class Learner(Protocol):
    """What is trained.

    Attributes:
        examples: number of training examples.
    """

    examples: int

    @property
    def module(self) -> nn.Module:
        """The module that is trained."""

    def loss(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Mean loss on the examples with these numbers (B,); all randomness comes from the generator."""


@dataclass(frozen=True)
class Schedule:
    """Hyperparameters of the optimiser.

    Attributes:
        iterations: steps of the optimiser.
        batch: examples in each.
        learning_rate: its highest value, reached after ``warmup`` iterations; it falls along a cosine to ``floor`` of that.
        warmup: iterations.
        floor: share of the highest learning rate that is left at the end.
        weight_decay: AdamW's.
        clip: largest norm of a gradient.
        ema_decay: decay of the exponential moving average of the weights, in the long run.
        save_every: iterations between two checkpoints.
    """

    iterations: int = 4000
    batch: int = 192
    learning_rate: float = 1e-3
    warmup: int = 200
    floor: float = 0.05
    weight_decay: float = 1e-4
    clip: float = 1.0
    ema_decay: float = 0.995
    save_every: int = 250

    def learning_rate_at(self, iteration: int) -> float:
        """The learning rate of an iteration, the first being 1.

        >>> schedule = Schedule(iterations=1000)
        >>> schedule.learning_rate_at(100) < schedule.learning_rate_at(200) > schedule.learning_rate_at(1000)
        True
        """
        cosine = 0.5 * (1 + math.cos(math.pi * iteration / self.iterations))
        return self.learning_rate * min(1.0, iteration / self.warmup) * (self.floor + (1 - self.floor) * cosine)

    def ema_decay_at(self, iteration: int) -> float:
        """The decay in an iteration: smaller at first, so that the average follows the weights."""
        return min(self.ema_decay, (1 + iteration) / (10 + iteration))


def optimise(
    learner: Learner, schedule: Schedule, seed: int, checkpoint: Path, report: ProgressCallback = no_progress
) -> float:
    """Train the learner's module and leave the moving average of its weights in it; returns the (smoothed) final loss.

    Args:
        learner: what is fitted.
        schedule: how.
        seed: of all randomness.
        checkpoint: file to resume from, if it exists, and to store the state in.
        report: progress callback.
    """
    run = _Run(learner, schedule, seed)
    if checkpoint.exists():
        run.restore(checkpoint)
    with _one_thread():
        while run.iteration < schedule.iterations:
            run.step()
            if run.iteration % schedule.save_every == 0 or run.iteration == schedule.iterations:
                run.store(checkpoint)
            if run.iteration % 10 == 0 or run.iteration == schedule.iterations:
                report(run.iteration, f"loss {run.smooth_loss:.4f}")
    learner.module.load_state_dict(run.average.state_dict())
    return run.smooth_loss


class _Run:
    """A training run between two iterations."""

    def __init__(self, learner: Learner, schedule: Schedule, seed: int) -> None:
        self.learner, self.schedule = learner, schedule
        self.average = copy.deepcopy(learner.module).requires_grad_(False)
        self.optimiser = torch.optim.AdamW(
            learner.module.parameters(), lr=schedule.learning_rate, weight_decay=schedule.weight_decay
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.iteration = 0
        self.smooth_loss = math.nan

    def step(self) -> None:
        learner, schedule = self.learner, self.schedule
        self.iteration += 1
        for group in self.optimiser.param_groups:
            group["lr"] = schedule.learning_rate_at(self.iteration)
        rows = torch.randint(learner.examples, (schedule.batch,), generator=self.generator)
        loss = learner.loss(rows, self.generator)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learner.module.parameters(), schedule.clip)
        self.optimiser.step()
        with torch.no_grad():
            for mean, weight in zip(self.average.parameters(), learner.module.parameters(), strict=True):
                mean.lerp_(weight, 1 - schedule.ema_decay_at(self.iteration))
        value = loss.item()
        self.smooth_loss = value if self.iteration == 1 else 0.98 * self.smooth_loss + 0.02 * value

    def store(self, path: Path) -> None:
        state = {
            "module": self.learner.module.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "iteration": self.iteration,
            "smooth_loss": self.smooth_loss,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        serialised = io.BytesIO()  # torch's writer replaces the error of a full disk by one of its own
        torch.save(state, serialised)
        with atomic_write(path) as draft:
            draft.write_bytes(serialised.getbuffer())

    def restore(self, path: Path) -> None:
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
            self.learner.module.load_state_dict(state["module"])
            self.average.load_state_dict(state["average"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.generator.set_state(state["generator"])
            self.iteration, self.smooth_loss = state["iteration"], state["smooth_loss"]
        except (RuntimeError, KeyError, ValueError, EOFError, pickle.UnpicklingError) as error:
            reason = str(error).partition("\n")[0]
            raise KeystoneError(f"training cannot resume from {path}: delete it to start again ({reason})") from error


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Sums depend on how many threads share them; on one, the weights do not depend on the machine's number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
