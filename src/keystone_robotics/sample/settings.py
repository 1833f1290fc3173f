"""What happens between the rounds of an attached policy: K and the steps change, are tried out, and rounds are drawn again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from keystone_robotics.sample.event import Listener, Listeners
from keystone_robotics.sample.steps import check_steps
from keystone_robotics.select.agreement import AdaptiveRange

if TYPE_CHECKING:
    from keystone_robotics.sample.engine import Engine


def set_k(engine: Engine, k: int, adaptive: AdaptiveRange | None = None) -> None:
    """Set K from the next round on; ends ``k="auto"``, and adaptive K unless it is given."""
    _change(engine, k=k, k_range=adaptive, k_given=True)


def set_steps(engine: Engine, steps: int | None) -> None:
    """Set the number of denoising steps from the next round on; None is the policy's own number."""
    if steps is not None:
        check_steps(engine.adapter, engine.owner, steps)
    _change(engine, steps=steps)


def find_k(engine: Engine, k: int) -> bool:
    """Set the K that ``k="auto"`` found; False if the user has set another meanwhile, which is final."""
    with engine.checking:
        if settled(engine, "k_given"):
            return False
        set_k(engine, k)
        return True


def settled(engine: Engine, name: str) -> Any:
    """A setting as it is outside of trials."""
    trials = engine.trials  # read once: another thread's may end
    return (trials[0] if trials else vars(engine))[name]


def _change(engine: Engine, **settings: Any) -> None:
    """Change settings: in a trial until it ends, else also for after the trials of other threads."""
    with engine.checking:  # not in the middle of a self-check
        if engine.finding is not None and engine.finding.k == 1 < settings.get("k", 1):
            engine.verified_steps.clear()  # one candidate cannot verify several: check again
        vars(engine).update(settings)
        if engine.rehearsed is None:
            for after in engine.trials:
                after.update(settings)
    engine.drop_old_rounds()


@contextlib.contextmanager
def rehearsal(engine: Engine, *listeners: Listener) -> Iterator[None]:
    """Rounds within this block and thread are not executed: they are not counted or remembered, and reported to these
    listeners only.
    """
    before, engine.rehearsing.listeners = engine.rehearsed, Listeners(listeners)
    try:
        yield
    finally:
        engine.rehearsing.listeners = before


@contextlib.contextmanager
def trial(engine: Engine, *listeners: Listener) -> Iterator[None]:
    """A rehearsal in which K and the number of steps may be set: afterwards they are what they were, or what other threads
    have set meanwhile.
    """
    with engine.checking:
        after = {name: getattr(engine, name) for name in ("k", "k_range", "k_given", "steps")}
        engine.trials = (*engine.trials, after)
    try:
        with rehearsal(engine, *listeners):
            yield
    finally:
        with engine.checking:
            _change(engine, **after)
            engine.trials = tuple(one for one in engine.trials if one is not after)


def replay(engine: Engine, number: int, k: int | None = None) -> Tensor:
    """Draw the candidates (B, K, T, D) of a kept round again on its path; K may differ."""
    kept = engine.kept
    if number not in kept:
        have = f"kept: {sorted(kept)}" if kept else "none is kept: attach(..., keep=8) keeps the last eight"
        raise KeyError(f"round {number} cannot be replayed; {have}")
    round, path, drawn = kept[number]
    with engine.timer.round():
        return round.draw(path, k or drawn)[0]
