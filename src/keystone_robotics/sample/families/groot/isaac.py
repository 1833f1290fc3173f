"""Isaac-GR00T's own code: the action heads of N1.5, N1.6 and N1.7."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.families.groot.flow_head import (
    denoise,
    may_share,
    own_network,
    shared_network,
    with_future_tokens,
)
from keystone_robotics.sample.families.groot.lerobot import GrootOverride
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class IsaacGroot15Override(SamplerOverride):
    """On the action head of N1.5, which encodes and denoises in one method."""

    @torch.no_grad()
    def get_action(self, backbone_output: Any, action_input: Any) -> Any:
        own = super().get_action  # type: ignore[misc]
        if self._keystone.untouched:
            return self._keystone.run_single(partial(own, backbone_output, action_input), itemgetter("action_pred"))
        features = backbone_output.backbone_features

        def fresh() -> Any:
            # The head overwrites the features in its input with processed ones.
            return type(backbone_output)(data=dict(backbone_output))

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            context = self.process_backbone_output(fresh()).backbone_features
            embodiment = action_input.embodiment_id
            state = widen(self.state_encoder(action_input.state, embodiment), k)
            network = shared_network(self, context) if shared else own_network(self, widen(context, k))
            robots = embodiment if shared else widen(embodiment, k)
            return denoise(self, noise, network, with_future_tokens(self, state, len(noise)), (robots,))

        return self._keystone.run(
            SampleRequest(
                single=lambda: own(fresh(), action_input),
                chunk=itemgetter("action_pred"),
                restore=lambda chunk: type(backbone_output)(data={"action_pred": chunk}),
                wide=draw,
                shared=partial(draw, shared=True) if may_share(self) else None,
                noise=NoiseSpec.like(features, (self.config.action_horizon, self.config.action_dim)),
            )
        )


class IsaacGrootAdapter(Adapter):
    """GR00T N1.5, N1.6 and N1.7 in Isaac-GR00T.

    Attaches to the ``Gr00tPolicy``, whose processor has the robot's dimensions, or to the model or action head.
    """

    name = "isaac-groot"
    shared_context = (
        "vision-language tokens and their projections in cross-attention (one copy, independent of K), "
        "the state's tokens"
    )
    project = "Isaac-GR00T"
    steps = "num_inference_timesteps"
    steps_by_default = "4"
    compiles = True
    padding_reason = (
        "chunks are padded to the widest robot and the longest horizon of the model. A Gr00tPolicy has the real dimensions, "
        "its model and action head do not"
    )

    def owns(self, policy: Any) -> bool:
        head = _head(policy)
        if head is None or not all(
            hasattr(head, name) for name in ("action_encoder", "action_decoder", "action_horizon")
        ):
            return False
        return hasattr(head, "get_action_with_features") or hasattr(head, "future_tokens")

    def module(self, policy: Any) -> Any:
        return _head(policy)

    def overrides(self, policy: Any) -> Sequence[tuple[Any, type[SamplerOverride]]]:
        head = self.module(policy)
        return [(head, GrootOverride if hasattr(head, "get_action_with_features") else IsaacGroot15Override)]

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(_head(policy), "process_backbone_output")]

    def config(self, policy: Any) -> Any:
        return policy

    def window(self, config: Any) -> Window | None:
        """As much as the policy decodes; how much of that a client executes, only the client knows."""
        dims = _decoded_dims(config)
        if dims is None:
            return None
        modalities = config.modality_configs if hasattr(config, "modality_configs") else config.modality_config
        return Window(dims, 0, len(modalities["action"].delta_indices))


def _head(policy: Any) -> Any:
    """The action head of a policy or model, or the object itself."""
    for holder in (policy, getattr(policy, "model", None)):
        head = getattr(holder, "action_head", None)
        if head is not None:
            return head
    return policy if hasattr(policy, "get_action") and hasattr(policy, "process_backbone_output") else None


def _decoded_dims(policy: Any) -> int | None:
    """Number of dimensions that a Gr00tPolicy decodes to actions, from its processor; None without one."""
    processor = getattr(policy, "processor", None)
    if processor is not None and hasattr(policy, "embodiment_tag"):
        robot = policy.embodiment_tag.value
        known = processor.state_action_processor.norm_params[robot]["action"]
        return sum(int(known[key]["dim"]) for key in policy.modality_configs["action"].modality_keys)
    for transform in getattr(getattr(policy, "modality_transform", None), "transforms", ()):  # N1.5
        if getattr(transform, "action_dims", None):
            return sum(int(transform.action_dims[key]) for key in transform.action_concat_order)
    return None
