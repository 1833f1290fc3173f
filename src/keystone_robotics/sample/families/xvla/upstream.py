"""X-VLA's own code: the transformer processes context and actions jointly, so only the encoder is shared."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.families.xvla.lerobot import denoise
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest
from keystone_robotics.sample.steps import default_argument


class OwnXVLAOverride(SamplerOverride):
    """On the model. Candidates are compared after the action space's ``postprocess``: before it, the gripper is a logit."""

    @torch.no_grad()
    def generate_actions(self, *args: Any, **kwargs: Any) -> Tensor:
        generate, engine = super().generate_actions, self._keystone  # type: ignore[misc]
        if engine.untouched and engine.steps is None:
            return engine.run_single(partial(generate, *args, **kwargs))
        bound = inspect.signature(generate).bind(*args, **kwargs)
        bound.apply_defaults()
        if len(bound.arguments) != 6:
            raise KeystoneError(
                f"x-vla: generate_actions takes {', '.join(bound.arguments)}; expected text, images, their mask, the domain, "
                "the proprioception and the number of steps: X-VLA's code has changed"
            )
        if engine.steps is not None:
            bound.arguments[list(bound.arguments)[-1]] = engine.steps
        ids, images, image_mask, domain, proprio, steps = bound.arguments.values()

        def draw(noise: Tensor, k: int) -> Tensor:
            self.eval()
            context = {name: widen(value, k) for name, value in self.forward_vlm(ids, images, image_mask).items()}
            # A copy: an action space may write into the proprioception, and rows of an expanded view share memory.
            state = widen(proprio, k).clone()
            action = denoise(self, noise, max(1, int(steps)), state, domain_id=widen(domain, k), **context)
            return self._finish(action, state)

        return engine.run(
            SampleRequest(
                single=lambda: generate(*bound.args, **bound.kwargs),
                wide=draw,
                noise=NoiseSpec(
                    batch=ids.shape[0],
                    shape=(self.num_actions, self.action_space.dim_action),
                    device=proprio.device,
                    dtype=proprio.dtype,
                ),
            )
        )

    def _finish(self, action: Tensor, proprio: Tensor) -> Tensor:
        finish = self.action_space.postprocess  # takes the proprioception since 2026
        return finish(action, **({"proprio": proprio} if len(inspect.signature(finish).parameters) > 1 else {}))


class OwnXVLAAdapter(Adapter):
    """X-VLA in its own repository, and as shipped with checkpoints."""

    name = "x-vla"
    shared_context = (
        "image and text features (encoded once, copied K times; every candidate runs them through every step)"
    )
    encoders = ("forward_vlm",)
    project = "X-VLA"
    recognised_by = ("generate_actions", "forward_vlm", "transformer", "action_space", "num_actions")
    steps_argument = "steps"
    steps_by_default = "10"
    override = OwnXVLAOverride
    padding_reason = (
        "chunks have dimensions for two arms, and the model does not specify how many the robot has (WidowX and Franka: "
        "dims=10, position, 6-d rotation and gripper of the first)"
    )

    def default_steps(self, policy: Any) -> int | None:
        """Of the method; a caller may pass another number."""
        return default_argument(policy, "generate_actions", self.steps_argument)

    def config(self, policy: Any) -> Any:
        return policy

    def window(self, config: Any) -> Window:
        # Space "auto" removes the padding itself. All of X-VLA's clients execute whole chunks.
        return Window(getattr(config.action_space, "real_dim", None), 0, int(config.num_actions))
