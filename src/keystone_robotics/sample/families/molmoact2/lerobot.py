"""LeRobot's MolmoAct2: an action expert that attends to the keys and values of a vision-language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.proxies import is_replaced
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


class MolmoAct2CrossAttentionOverride(SamplerOverride):
    """On the cross-attention of each block of the expert: candidates become queries of one row if the context has one row per
    observation. Queries are independent and have no positions here, so the result is the same.
    """

    def forward(self, x: Tensor, *, kv_k: Tensor, **others: Any) -> Tensor:
        attended: Tensor = super().forward(x.reshape(kv_k.shape[0], -1, x.shape[-1]), kv_k=kv_k, **others)  # type: ignore[misc]
        return attended.view_as(x)


#: Arguments of ``generate_actions_from_inputs`` that do not go to the vision-language model beside its tokens.
NOT_VISION = (
    "input_ids", "attention_mask", "states", "action_dim_is_pad", "encoder_kv_states", "encoder_attention_mask",
    "action_horizon", "num_steps", "generator",
)  # fmt: skip


class MolmoAct2Override(SamplerOverride):
    """On the backbone, ``policy._backbone()``."""

    @torch.no_grad()
    def generate_actions_from_inputs(self, **inputs: Any) -> Tensor:
        inputs["num_steps"] = self._keystone.steps or inputs.get("num_steps")
        draw, weight = partial(self._draw, inputs), self._require_action_expert().action_embed.weight
        return self._keystone.run(
            SampleRequest(
                single=partial(super().generate_actions_from_inputs, **inputs),  # type: ignore[misc]
                wide=draw,
                shared=partial(draw, shared=True) if may_share(self) else None,
                noise=NoiseSpec(
                    batch=inputs["input_ids"].shape[0],
                    shape=(self._resolve_action_horizon(inputs.get("action_horizon")), self.config.max_action_dim),
                    device=weight.device,
                    dtype=weight.dtype,
                ),
            )
        )

    def _draw(self, inputs: Mapping[str, Any], noise: Tensor, k: int, shared: bool = False) -> Tensor:
        steps, graphs = _steps(self, inputs), self.action_cuda_graph_manager
        flow = _flow(self, inputs, noise, k, shared, self.config.mask_action_dim_padding)
        if graphs is not None and graphs.can_use_action_flow(flow):
            return graphs.run_action_flow(flow, steps, self._run_action_flow_loop)
        return self._run_action_flow_loop(flow, steps)


class MolmoAct2RTCOverride(SamplerOverride):
    """On the policy, which has a separate loop for real-time chunking."""

    def _generate_actions_from_inputs_with_rtc(self, **given: Any) -> Tensor:
        given["num_steps"] = self._keystone.steps or given["num_steps"]
        draw, backbone, ids = partial(self._draw_rtc, given), self._backbone(), given["model_inputs"]["input_ids"]
        return self._keystone.run(
            SampleRequest(
                single=partial(super()._generate_actions_from_inputs_with_rtc, **given),  # type: ignore[misc]
                wide=draw,
                shared=partial(draw, shared=True) if may_share(backbone) else None,
                noise=NoiseSpec(
                    batch=ids.shape[0],
                    shape=(self._generation_action_horizon(), int(backbone.config.max_action_dim)),
                    device=ids.device,
                ),
                delay=int(given["inference_delay"] or 0),
                guided=given["prev_chunk_left_over"] is not None,
            )
        )

    def _draw_rtc(self, given: Mapping[str, Any], noise: Tensor, k: int, shared: bool = False) -> Tensor:
        backbone, expert, masked = self._backbone(), self._action_expert(), self.config.mask_action_dim_padding
        inputs, steps = given["model_inputs"], _steps(backbone, given)
        mask = self._encoder_attention_mask_for_action_expert(
            input_ids=inputs.get("input_ids"), attention_mask=inputs.get("attention_mask")
        )
        inputs = {
            **inputs,
            "action_dim_is_pad": given["action_dim_is_pad"],
            "encoder_attention_mask": mask,
            "num_steps": steps,
        }
        flow = _flow(backbone, inputs, noise, k, shared, masked)
        # A leftover of one row broadcasts to all candidates.
        left_over = given["prev_chunk_left_over"]
        if left_over is not None and left_over.ndim == 3 and left_over.shape[0] == inputs["input_ids"].shape[0]:
            left_over = widen(left_over, k)

        def towards_noise(modulation: Any, x: Tensor) -> Tensor:
            velocity = expert.forward_with_context(
                x, modulation.conditioning, context=flow.context, modulation=modulation
            )
            return -_without_padding(backbone, velocity, flow.action_dim_is_pad, masked)

        actions = flow.trajectory
        for i, modulation in enumerate(flow.modulations):
            # Real-time chunking counts time from 1 down to 0, with the opposite velocity.
            guided = self.rtc_processor.denoise_step(
                x_t=actions,
                prev_chunk_left_over=left_over,
                inference_delay=int(given["inference_delay"] or 0),
                time=1.0 - i / steps,
                original_denoise_step_partial=partial(towards_noise, modulation),
                execution_horizon=given["execution_horizon"],
            )
            actions = _without_padding(backbone, actions - guided / steps, flow.action_dim_is_pad, masked)
        return actions


def _steps(model: Any, inputs: Mapping[str, Any]) -> int:
    """The number of denoising steps of a call."""
    return int(inputs["num_steps"] or model.config.flow_matching_num_steps)


def _flow(model: Any, inputs: Mapping[str, Any], noise: Tensor, k: int, shared: bool, masked: bool) -> Any:
    """Inputs of the expert's loop over B * K rows of noise; the context is encoded and projected for B rows, then repeated if
    it is not shared.

    Args:
        model: the backbone.
        inputs: arguments of its ``generate_actions_from_inputs``.
        noise: (B * K, T, D).
        k: candidates.
        shared: one row of context per observation; requires `may_share`.
        masked: padded dimensions are set to zero.
    """
    from lerobot.policies.molmoact2.molmoact2_hf_model.inference import _ActionFlowInputs

    steps, input_ids, attention_mask = _steps(model, inputs), inputs["input_ids"], inputs.get("attention_mask")
    encoder_kv_states, encoder_attention_mask = inputs.get("encoder_kv_states"), inputs.get("encoder_attention_mask")
    action_dim_is_pad = inputs.get("action_dim_is_pad")
    expert, device = model._require_action_expert(), noise.device
    if encoder_kv_states is None:
        vision = {name: value for name, value in inputs.items() if name not in NOT_VISION}
        outputs = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=True, **vision)
        encoder_kv_states = model._extract_kv_states(outputs.past_key_values)
    if encoder_attention_mask is None:
        encoder_attention_mask = model._get_encoder_attention_mask(input_ids, attention_mask)
    gate, depth_mask = model._depth_gate_from_condition(
        input_ids=input_ids, encoder_attention_mask=encoder_attention_mask, layer_kv_states=encoder_kv_states
    )
    context = expert.prepare_context(
        encoder_kv_states=model._apply_depth_gate_to_layer_kv_states(encoder_kv_states, depth_mask, gate),
        encoder_attention_mask=encoder_attention_mask,
        state_embeddings=inputs.get("states"),
        batch_size=input_ids.shape[0],
        seq_len=noise.shape[1],
        device=device,
        dtype=noise.dtype,
    )
    if not shared:
        context.kv_contexts = [
            (_repeat_contiguous(key, k), _repeat_contiguous(value, k)) for key, value in context.kv_contexts
        ]
        context.cross_mask = _repeat_contiguous(context.cross_mask, k)
    rows = 1 if shared else len(noise)  # all rows have the same time
    times = [torch.full((rows,), i / steps, device=device) for i in range(steps)]
    if action_dim_is_pad is not None and action_dim_is_pad.ndim > 1:
        action_dim_is_pad = _repeat_contiguous(action_dim_is_pad, k)
    return _ActionFlowInputs(
        trajectory=_without_padding(model, noise, action_dim_is_pad, masked),
        context=context,
        modulations=expert.get_or_prepare_modulation_cache(times, cache_key=(steps, rows, device, noise.dtype)),
        action_dim_is_pad=action_dim_is_pad,
    )


def _repeat_contiguous(value: Tensor | None, k: int) -> Tensor | None:
    """One contiguous row per candidate: the policy's CUDA graphs write into tensors of this layout."""
    return None if value is None else widen(value, k).contiguous()


def may_share(model: Any) -> bool:
    """Whether all cross-attention modules of the expert are overridden to fold candidates."""
    return all(
        isinstance(block.cross_attn, MolmoAct2CrossAttentionOverride) for block in model._require_action_expert().blocks
    )


def _without_padding(model: Any, actions: Tensor, action_dim_is_pad: Tensor | None, masked: bool) -> Tensor:
    """Set padded dimensions to zero, if the policy masks them."""
    return model._mask_action_dim_tensor(actions, action_dim_is_pad=action_dim_is_pad, enabled=masked)


class MolmoAct2Adapter(Adapter):
    """MolmoAct2, in its continuous mode."""

    name = "molmoact2"
    shared_context = (
        "keys and values of the vision-language model, projected for the action expert (one copy, independent of K)"
    )
    steps = "config.flow_matching_num_steps"
    steps_argument = "num_steps"
    steps_by_default = "10"
    override = MolmoAct2Override

    def default_steps(self, policy: Any) -> int | None:
        given = policy.config.num_inference_steps
        return super().default_steps(policy) if given is None else int(given)

    def module(self, policy: Any) -> Any:
        return policy._backbone()

    def overrides(self, policy: Any) -> Sequence[tuple[Any, type[SamplerOverride]]]:
        # A ``forward`` that was replaced on the instance is called, on a context with one row per candidate.
        attentions = [block.cross_attn for block in policy._action_expert().blocks]
        folding = [(one, MolmoAct2CrossAttentionOverride) for one in attentions if not is_replaced(one, "forward")]
        return [(policy._backbone(), MolmoAct2Override), (policy, MolmoAct2RTCOverride), *folding]

    def encoder_methods(self, policy: Any) -> Sequence[tuple[Any, str]]:
        return [(policy._backbone(), "forward")]

    def encoder_modules(self, policy: Any) -> Sequence[Any]:
        """All children except the action expert, which projects the context itself."""
        return [part for part in policy._backbone().children() if part is not policy._action_expert()]

    def refuse(self, policy: Any) -> str:
        if policy.config.inference_action_mode == "discrete":
            return 'inference_action_mode="discrete" decodes tokens greedily; only "continuous" draws noise'
        return ""
