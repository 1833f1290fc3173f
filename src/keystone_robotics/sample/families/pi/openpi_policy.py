"""What openpi's policies have in common in PyTorch and JAX: the `Policy` object and which numbers of a chunk it passes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.sample.adapter import Adapter, Window

_POLICY = ("infer", "_sample_actions", "_model", "_input_transform", "_output_transform")


@dataclass(frozen=True)
class Chunk:
    """The chunks that a policy samples.

    Attributes:
        steps: of a chunk (``action_horizon``); how many are executed is the client's affair.
        dims: that reach the robot, counted from the first; None if the policy does not tell.
    """

    steps: int
    dims: int | None


class OpenPiFamily(Adapter):
    """Adapters for openpi's `Policy`, whatever holds it, and for its model."""

    project = "openpi"
    padding_reason = (
        "openpi pads actions, and here are neither output transforms that cut them nor statistics of the actions to tell which "
        "dimensions are real (a bare model has none: attach to the Policy)"
    )
    pytorch: ClassVar[bool]

    def owns(self, policy: Any) -> bool:
        if is_policy(policy):
            return bool(getattr(policy, "_is_pytorch_model", False)) == self.pytorch
        return self.owns_model(policy)

    def owns_model(self, model: Any) -> bool:
        """Whether an object is a model of this kind, without a policy around it."""
        raise NotImplementedError

    def cost(self, policy: Any) -> Any:
        """What the sampler is called with (``num_steps``), and the size of a chunk."""
        model = policy._model if is_policy(policy) else policy
        sizes = model.config if self.pytorch else model
        return [repr(getattr(policy, "_sample_kwargs", None)), int(sizes.action_horizon), int(sizes.action_dim)]

    def rows(self, policy: Any, observation: Any) -> int | None:
        """One for a `Policy`, which takes observations without a batch dimension."""
        if is_policy(policy):
            return 1
        state = getattr(observation, "state", None)
        return None if state is None else int(state.shape[0])

    def config(self, policy: Any) -> Chunk:
        model = policy._model if is_policy(policy) else policy
        sizes = model.config if self.pytorch else model
        steps, dims = int(sizes.action_horizon), int(sizes.action_dim)
        return Chunk(steps, real_dims(policy, steps, dims) if is_policy(policy) else None)

    def window(self, config: Chunk) -> Window:
        return Window(config.dims, 0, config.steps)


def is_policy(policy: Any) -> bool:
    """Whether an object is openpi's `Policy`, by its shape."""
    return all(hasattr(policy, name) for name in _POLICY)


def real_dims(policy: Any, steps: int, dims: int) -> int | None:
    """How many action dimensions of the model reach the robot, counted from the first; None if nothing tells.

    Models pad actions (to 32) and the policy's output transforms cut them again (to 7 for LIBERO). So each dimension is
    moved a little and it is watched whether the transformed chunk moves. Statistics may know fewer: those that openpi
    computed after padding have a width of zero there.
    """
    reach, known = _reach(policy._output_transform, steps, dims), _known(policy._output_transform)
    if reach is None or (reach == dims and known is None):
        return known
    return reach if known is None else min(reach, known)


def _reach(transform: Any, steps: int, dims: int) -> int | None:
    def sent(moved: int | None = None, by: float = 0.0) -> NDArray[Any]:
        actions = np.zeros((steps, dims), np.float32)
        if moved is not None:
            actions[:, moved] = by
        return np.array(transform({"state": np.zeros(dims, np.float32), "actions": actions})["actions"])

    try:
        still = sent()
        for dim in reversed(range(dims)):
            if not all(np.array_equal(sent(dim, by), still) for by in (1.0, -1.0)):
                return dim + 1
    except Exception:  # somebody's own transforms, which may want more than a state and actions: they cannot be asked
        return None
    return None


def _known(transform: Any) -> int | None:
    """The dimensions of which there are statistics that are more than padding."""
    for part in getattr(transform, "transforms", (transform,)):
        statistics = getattr(part, "norm_stats", None) or {}
        actions = statistics.get("actions") if hasattr(statistics, "get") else None
        if actions is not None:
            moving = np.flatnonzero(np.asarray(actions.std))
            return int(moving[-1]) + 1 if len(moving) else None
    return None
