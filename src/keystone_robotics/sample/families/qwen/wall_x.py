"""LeRobot's Wall-X: runs its whole vision-language model at every step, though the prompt does not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.qwen.denoiser import ACTION, BYPASS, denoise, own_network, prepare, recognises
from keystone_robotics.sample.kit.bypass import may_bypass
from keystone_robotics.sample.kit.widen import widen
from keystone_robotics.sample.noise import FixedNoise
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest
from keystone_robotics.sample.steps import default_argument

STEPS = "num_inference_timesteps"


class WallXOverride(SamplerOverride):
    """On ``policy.model``.

    Attention is causal and the action tokens come last, so the keys and values of the prompt do not depend on them: they are
    computed once for all steps and candidates. If rows are padded on the right, the action tokens are not last, and the whole
    model runs K wide at every step.
    """

    @torch.no_grad()
    def predict(self, predict_mode: str, **inputs: Any) -> dict[str, Any]:
        single = super().predict  # type: ignore[misc]
        if predict_mode != "diffusion":
            return single(predict_mode, **inputs)
        if self._keystone.steps is not None:
            inputs[STEPS] = self._keystone.steps
        own = partial(single, predict_mode, **inputs)
        if self._keystone.untouched:
            return self._keystone.run_single(own, itemgetter("predict_action"))
        if inputs.get("pixel_values_videos") is not None or inputs.get("inputs_embeds") is not None:
            raise KeystoneError("Wall-X is supported with image inputs only, not with videos or inputs_embeds")
        inputs.setdefault(STEPS, default_argument(self, "predict", STEPS))
        ids, horizon = inputs["input_ids"], inputs["pred_horizon"]
        is_action = ids == self.action_token_id_set["action_token_id"]

        def draw(noise: Tensor, k: int, shared: bool = False) -> Tensor:
            if is_action[:, -horizon:].all():
                return self._denoise(inputs, noise, k, shared)
            embeds, positions = self._embed(inputs)
            wide = {
                name: widen(inputs[name], k) for name in ("input_ids", "attention_mask", "moe_token_types", "dof_mask")
            }
            wide.update(inputs_embeds=widen(embeds, k), position_ids=positions.repeat_interleave(k, dim=1))
            dropped = ("pixel_values", "image_grid_thw", "proprioception", "agent_pos_mask", "action_chunk")
            kept = {name: value for name, value in inputs.items() if name not in dropped}
            with torch.random.fork_rng([noise.device] if noise.is_cuda else []), FixedNoise(noise):
                return single(predict_mode, **{**kept, **wide})["predict_action"]

        def restore(chunk: Tensor) -> dict[str, Any]:
            output = {"predict_action": chunk}
            if inputs.get("action_chunk") is not None:
                output["gt_action"] = inputs["action_chunk"].float()[:, :, inputs["dof_mask"][0, 0].bool()]
            return output

        return self._keystone.run(
            SampleRequest(
                single=own,
                chunk=itemgetter("predict_action"),
                restore=restore,
                wide=draw,
                shared=partial(draw, shared=True) if self.may_share(inputs) else None,
                noise=NoiseSpec(batch=ids.shape[0], shape=(horizon, inputs["action_dim"]), device=ids.device),
            )
        )

    def may_share(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the fast path supports the model, and would skip no hook or replaced method; the action tokens must come last
        and attend to each other.
        """
        ids, horizon = inputs["input_ids"], inputs["pred_horizon"]
        is_action = ids == self.action_token_id_set["action_token_id"]
        plain = is_action & inputs["attention_mask"].to(ids.device).bool() & (inputs["moe_token_types"] == ACTION)
        return (
            recognises(self.model)
            and may_bypass(self._keystone, BYPASS, self.model)
            and bool(plain[:, -horizon:].all())
        )

    def _embed(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Embeddings (B, L, E) of text, images and state, and positions (3, B, L)."""
        input_ids, image_grid_thw = inputs["input_ids"], inputs.get("image_grid_thw")
        pixel_values, proprioception = inputs.get("pixel_values"), inputs.get("proprioception")
        embeds = self.model.embed_tokens(input_ids)
        if pixel_values is not None:
            image = self.visual(pixel_values.type(self.visual.dtype), grid_thw=image_grid_thw).pooler_output
            is_image = (input_ids == self.config.image_token_id).unsqueeze(-1).expand_as(embeds)
            embeds = embeds.masked_scatter(is_image, image.to(embeds))
        if proprioception is not None:
            known = inputs["agent_pos_mask"].to(embeds)
            state = self.action_preprocessor.proprioception_proj(proprioception.to(embeds), known)
            is_state = input_ids == self.action_token_id_set["propri_token_id"]
            # through bfloat16 for any model dtype, as the policy does
            embeds[is_state] = state.to(torch.bfloat16).reshape(-1, embeds.shape[-1]).to(embeds.dtype)
        positions, self.rope_deltas = self.get_rope_index(
            input_ids, image_grid_thw, None, None, inputs["attention_mask"]
        )
        return embeds, positions

    def _denoise(self, inputs: Mapping[str, Any], actions: Tensor, k: int, shared: bool) -> Tensor:
        """(B * K, T, D) chunks from noise of the same shape; keys and values of the prompt are computed once."""
        (embeds, positions), horizon = self._embed(inputs), inputs["pred_horizon"]
        head, start = self.action_preprocessor, embeds.shape[1] - horizon
        mask, types = inputs["attention_mask"].to(embeds.device), inputs["moe_token_types"]
        cache = self.model(
            inputs_embeds=embeds[:, :start],
            attention_mask=mask[:, :start],
            position_ids=positions[..., :start],
            moe_token_types=types[:, :start],
            use_cache=True,
            return_dict=True,
        ).past_key_values
        dof, positions = widen(inputs["dof_mask"].to(embeds.device, torch.float32), k), positions[..., start:]
        if shared:
            visible = torch.ones(horizon, horizon, dtype=torch.bool, device=embeds.device)
            prompt = prepare(self.model, embeds, mask[:, :start].bool(), cache, positions, visible)
            network: Callable[[Tensor], Tensor] = partial(denoise, prompt)
        else:
            cache.batch_repeat_interleave(k)
            wide = {"attention_mask": widen(mask, k), "moe_token_types": widen(types, k)}
            positions = positions.repeat_interleave(k, dim=1)
            network = own_network(self.model, cache, start, position_ids=positions, **wide)
        times = torch.linspace(0, 1, inputs[STEPS] + 1, device=embeds.device)
        for time, until in pairwise(times):
            hidden = network(head.step(time.repeat(actions.shape[0]), actions, dof).to(embeds.dtype))
            actions = actions + (until - time) * head.action_proj_back(hidden.float())
        return actions


class WallXAdapter(Adapter):
    """Wall-X, in its diffusion mode."""

    name = "wall_x"
    shared_context = "key-value cache of the prompt: images, text, state (one copy, independent of K)"
    sampler = "model"
    encoders = ("model.visual.forward",)
    steps_argument = STEPS
    steps_by_default = "10"
    override = WallXOverride

    def default_steps(self, policy: Any) -> int | None:
        return default_argument(policy.model, "predict", STEPS)

    def refuse(self, policy: Any) -> str:
        if policy.config.prediction_mode != "diffusion":
            return f'prediction_mode="{policy.config.prediction_mode}" decodes tokens greedily; only "diffusion" draws noise'
        return ""
