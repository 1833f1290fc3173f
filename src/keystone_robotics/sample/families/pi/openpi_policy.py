"""openpi's `Policy` object in PyTorch and JAX, and the real dimensions of its chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.steps import default_argument

_POLICY = ("infer", "_sample_actions", "_model", "_input_transform", "_output_transform")


@dataclass(frozen=True)
class Chunk:
    """The size of a chunk.

    Attributes:
        steps: of a chunk (``action_horizon``); the client decides how many are executed.
        dims: real dimensions, counted from the first; None if unknown.
    """

    steps: int
    dims: int | None


class OpenPiFamily(Adapter):
    """Base of the adapters for openpi's `Policy`, objects that hold one, and its model."""

    project = "openpi"
    padding_reason = (
        "openpi pads actions, and neither output transforms nor statistics of the actions show here which dimensions are real "
        "(a bare model has none: attach to the Policy)"
    )
    steps_argument = "num_steps"
    steps_by_default = "10"
    pytorch: ClassVar[bool]

    def owns(self, policy: Any) -> bool:
        if is_policy(policy):
            return bool(getattr(policy, "_is_pytorch_model", False)) == self.pytorch
        return self.owns_model(policy)

    def owns_model(self, model: Any) -> bool:
        """Whether an object is a model of this framework, without a `Policy`."""
        raise NotImplementedError

    def default_steps(self, policy: Any) -> int | None:
        """What a `Policy` passes to its sampler, else the sampler's default."""
        model = policy._model if is_policy(policy) else policy
        given = getattr(policy, "_sample_kwargs", None) or {}
        return given.get(self.steps_argument) or default_argument(model, "sample_actions", self.steps_argument)

    def cost(self, policy: Any) -> Any:
        """The sampler's other arguments, and the size of a chunk."""
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
    """Whether an object is openpi's `Policy`, by duck typing."""
    return all(hasattr(policy, name) for name in _POLICY)


def real_dims(policy: Any, steps: int, dims: int) -> int | None:
    """Number of action dimensions that reach the robot, counted from the first; None if unknown.

    Models pad actions (to 32) and the policy's output transforms remove the padding (to 7 for LIBERO). So each dimension is
    perturbed, and those that change the transformed chunk are real. Statistics may narrow this down: openpi computes them
    after padding, and padded dimensions have zero standard deviation.
    """
    reaching, varying = (
        _dims_reaching_output(policy._output_transform, steps, dims),
        _dims_with_statistics(policy._output_transform),
    )
    if reaching is None or (reaching == dims and varying is None):
        return varying
    return reaching if varying is None else min(reaching, varying)


def _dims_reaching_output(transform: Any, steps: int, dims: int) -> int | None:
    def transformed(dim: int | None = None, value: float = 0.0) -> NDArray[Any]:
        actions = np.zeros((steps, dims), np.float32)
        if dim is not None:
            actions[:, dim] = value
        return np.array(transform({"state": np.zeros(dims, np.float32), "actions": actions})["actions"])

    try:
        unperturbed = transformed()
        for dim in reversed(range(dims)):
            if not all(np.array_equal(transformed(dim, value), unperturbed) for value in (1.0, -1.0)):
                return dim + 1
    except Exception:  # custom transforms may need more than a state and actions
        return None
    return None


def _dims_with_statistics(transform: Any) -> int | None:
    """Number of dimensions with non-zero standard deviation in the action statistics; None without statistics."""
    for part in getattr(transform, "transforms", (transform,)):
        statistics = getattr(part, "norm_stats", None) or {}
        actions = statistics.get("actions") if hasattr(statistics, "get") else None
        if actions is not None:
            varying = np.flatnonzero(np.asarray(actions.std))
            return int(varying[-1]) + 1 if len(varying) else None
    return None
