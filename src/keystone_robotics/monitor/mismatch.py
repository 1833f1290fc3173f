"""How an attached policy differs from the one that an alarm was calibrated for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from keystone_robotics.errors import KeystoneError, shorten
from keystone_robotics.handle import Handle
from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.sample.event import RoundEvent
from keystone_robotics.sample.selector import Selector
from keystone_robotics.sample.weights import weights_fingerprint
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.space import Layout
from keystone_robotics.spec import Spec


class Comparison:
    """Compares in the first round, since weights may be loaded until then, and whenever an option has changed.

    Args:
        calibration: what the alarm expects.
        handle: of the attached policy.
    """

    def __init__(self, calibration: Calibration, handle: Handle) -> None:
        self._calibration, self._handle = calibration, handle
        self._weights: str | None = None
        self._compared: tuple[Any, ...] = ()
        self._found = ""

    def __call__(self, event: RoundEvent) -> str:
        """What differs in a round, in words; "" if nothing does. Never raises, lest the alarm be silent or the round end."""
        try:
            self._update(event)
        except Exception as error:
            self._found = f"it cannot be compared with this policy: {error!r}"
        return self._found

    def _update(self, event: RoundEvent) -> None:
        engine, selector = self._handle.engine, self._handle.engine.selector
        options = (
            engine.k_range or event.k, engine.steps, engine.temperature, selector.rule, selector.metric, selector.space,
            selector.horizon, event.window and event.window.steps, event.candidates.shape[2:],
        )  # fmt: skip
        if options == self._compared:
            return
        self._compared = options
        if self._weights is None:
            self._weights = weights_fingerprint(engine) if self._calibration.weights else ""
        self._found = "; ".join(self._differences(event))

    def _differences(self, event: RoundEvent) -> Iterator[str]:
        calibration, selector = self._calibration, self._handle.engine.selector
        adaptive = selector.horizon is not None
        if self._weights and self._weights != calibration.weights:
            yield f"the policy's weights are not those of {calibration.policy or 'the calibration'}"
        if calibration.spec:
            try:
                then = Spec.parse(calibration.spec)
            except KeystoneError:
                yield f"its Spec {calibration.spec!r} is unknown here"
            else:
                adaptive = adaptive or then.execute_range is not None
                yield from _other_options(then, self._handle, event)
                yield from _other_space(then, selector, event)
        executed = None if event.window is None else event.window.steps
        if None not in (executed, calibration.execute) and executed != calibration.execute and not adaptive:
            yield f"{calibration.execute} steps of a chunk were executed, now {executed}"


def _other_options(then: Spec, handle: Handle, event: RoundEvent) -> Iterator[str]:
    engine = handle.engine
    now = Spec(
        rule=handle.rule,
        k=event.k if engine.k_range is None else str(engine.k_range),
        steps=handle.steps,
        temperature=engine.temperature,
        metric=handle.metric,
        execute=handle.execute if engine.selector.horizon is not None and event.k > 1 else None,
    )
    if not then.execute_range:
        then = replace(then, execute=None)  # a number of steps is compared as it was executed
    if then.k == "auto":
        then = replace(then, k=now.k)  # unknown
    for name in ("rule", "params", "k", "steps", "temperature", "metric", "execute"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            yield f"{name} was {_plain(before)}, now {_plain(after)}"


def _other_space(then: Spec, selector: Selector, event: RoundEvent) -> Iterator[str]:
    """What counts in distances, once the policy has said what the options leave open."""
    try:
        selectors = replace(selector, space=then.action_space(), execute=then.most_steps), selector
        before, after = (
            (one.space_for(event.candidates) or ActionSpace()).layout(*event.candidates.shape[2:]) for one in selectors
        )
    except (KeystoneError, ValueError) as error:
        yield f"what counted in distances does not fit this policy: {shorten(str(error))}"
        return
    for (name, was), now in zip(_counted(before).items(), _counted(after).values()):
        if was != now:
            yield f"{name} were {was}, now {now}"


def _counted(layout: Layout) -> dict[str, str]:
    """In words.

    >>> _counted(ActionSpace(dims=7, steps=[0, 2], rotation={"euler-xyz": 3}, gripper={6: 0.5}).layout(8, 9))
    {'steps that count': '0, 2', 'dimensions that count': '0 to 6', 'rotations': 'euler-xyz at 3', 'grippers': '6 (0.5)',
     'their scales': '1'}
    """
    blocks = [dim for _, block in layout.rotations for dim in block]
    dims = sorted([*layout.plain, *blocks, *(dim for dim, _ in layout.grippers)])
    scales = [f"{layout.scale[dim]:g}" for dim in dims]
    return {
        "steps that count": _indices(layout.steps),
        "dimensions that count": _indices(dims),
        "rotations": ", ".join(f"{name} at {block[0]}" for name, block in layout.rotations) or "none",
        "grippers": ", ".join(f"{dim} ({kind})" for dim, kind in sorted(layout.grippers)) or "none",
        "their scales": scales[0] if len(set(scales)) == 1 else ", ".join(scales),
    }


def _indices(indices: Sequence[int]) -> str:
    first, last = indices[0], indices[-1]
    if len(indices) > 2 and list(indices) == list(range(first, last + 1)):
        return f"{first} to {last}"
    return ", ".join(map(str, indices))


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{key}={item}" for key, item in value) or "none"
    return "the policy's own" if value is None else str(value)
