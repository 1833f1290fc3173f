"""LeRobot's GR00T N1.7: a diffusion transformer that alternates between self- and cross-attention."""

from __future__ import annotations

import functools
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.families.groot.flow_head import denoise, may_share, own_network, shared_network
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class GrootOverride(SamplerOverride):
    """On the action head of GR00T N1.6 and N1.7; only N1.7 passes ``action_input`` and ``options``."""

    @torch.no_grad()
    def get_action_with_features(
        self,
        backbone_features: Tensor,
        state_features: Tensor,
        embodiment_id: Tensor,
        backbone_output: Any,
        action_input: Any = None,
        options: dict[str, Any] | None = None,
    ) -> Any:
        own = partial(
            super().get_action_with_features,  # type: ignore[misc]
            backbone_features,
            state_features,
            embodiment_id,
            backbone_output,
            *(() if action_input is None else (action_input, options)),
        )
        previous = None if action_input is None else action_input.get("action")
        image, visible = None, None
        if self.config.use_alternate_vl_dit:
            image, visible = backbone_output["image_mask"], backbone_output["backbone_attention_mask"]

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            actions, strength = _rtc_start(noise, widen(previous, k), options)
            if shared:
                network = shared_network(self, backbone_features, visible, image)
            else:
                masks = {"image_mask": widen(image, k), "backbone_attention_mask": widen(visible, k)}
                network = own_network(self, widen(backbone_features, k), **({} if image is None else masks))
            embodiment = embodiment_id if shared else widen(embodiment_id, k)
            return denoise(self, actions, network, widen(state_features, k), (embodiment,), strength)

        def restore(chunk: Tensor) -> Any:
            fields = {"action_pred": chunk, "backbone_features": backbone_features, "state_features": state_features}
            return type(backbone_output)(data=fields)

        return self._keystone.run(
            SampleRequest(
                single=own,
                chunk=itemgetter("action_pred"),
                restore=restore,
                wide=draw,
                shared=partial(draw, shared=True) if may_share(self) else None,
                noise=NoiseSpec.like(backbone_features, (self.config.action_horizon, self.action_dim)),
                delay=0 if previous is None or options is None else options["rtc_frozen_steps"],
                guided=previous is not None,
            )
        )


def _rtc_start(noise: Tensor, previous: Tensor | None, options: Any) -> tuple[Tensor, Tensor | float]:
    """Real-time chunking: overlapping steps start from the previous chunk, with a velocity factor that ramps up.

    Returns:
        initial actions (B * K, T, D), and the velocity factor (T, 1).
    """
    if previous is None:
        return noise, 1.0
    if options is None:
        raise ValueError("RTC options are required when action is provided to get_action.")
    end, overlap, frozen = (options[name] for name in ("action_horizon", "rtc_overlap_steps", "rtc_frozen_steps"))
    actions, strength = noise.clone(), noise.new_ones(noise.shape[1], 1)
    actions[:, :overlap] = previous[:, end - overlap : end]
    times = torch.linspace(0.0, 1.0, overlap - frozen + 2, device=noise.device)
    ramp = 1 - torch.exp(-options["rtc_ramp_rate"] * times)
    strength[:frozen] = 0.0
    strength[frozen:overlap] = (ramp / ramp[-1].clamp_min(1e-8))[1:-1, None]
    return actions, strength


class GrootAdapter(Adapter):
    """GR00T N1.7."""

    name = "groot"
    shared_context = "vision-language tokens and their projections in cross-attention (one copy, independent of K)"
    sampler = "_groot_model.action_head"
    encoders = (
        "_groot_model.backbone.forward",
        "_groot_model.action_head._encode_features",
    )
    steps = "num_inference_timesteps"
    steps_by_default = "4"
    override = GrootOverride
    compiles = True

    def window(self, config: Any) -> Window:
        steps = int(config.n_action_steps)
        steps = min(steps, _executed_steps(config.base_model_path, config.embodiment_tag) or steps)
        return Window(int(config.action_feature.shape[0]), 0, steps)


@functools.cache
def _executed_steps(checkpoint: Any, embodiment: Any) -> int | None:
    """Maximum number of executed steps, read from the checkpoint's files as the policy does; None if not given."""
    from lerobot.policies.groot.configuration_groot import infer_groot_n1_7_action_execution_horizon

    return infer_groot_n1_7_action_execution_horizon(checkpoint, embodiment)
