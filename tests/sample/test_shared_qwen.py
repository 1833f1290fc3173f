"""The decoder of EO1 and Wall-X on a prompt that candidates share, against itself with a cache that was copied K times."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from keystone_robotics.sample.families.qwen.denoiser import denoise, prepare, recognises
from keystone_robotics.sample.kit.widen import widen
from tiny import POLICIES

PROMPT, ACTIONS = 9, 5


@functools.cache
def decoder_of(name: str, kind: torch.dtype) -> Any:
    model = POLICIES[name].build().requires_grad_(False).model
    decoder = model.vlm_backbone.model.language_model if name == "eo1" else model.model
    return copy.deepcopy(decoder).to(kind)


def both(name: str, batch: int, k: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Outputs (B * K, S, E) of the decoder's own code and of the shared one; rows differ in padding and positions."""
    decoder, generator = decoder_of(name, kind), torch.Generator().manual_seed(0)
    width = decoder.config.hidden_size
    prompt = torch.randn(batch, PROMPT, width, generator=generator).to(kind)
    tokens = torch.randn(batch * k, ACTIONS, width, generator=generator).to(kind)
    mask = torch.ones(batch, PROMPT + ACTIONS, dtype=torch.long)
    for row in range(batch):
        mask[row, :row] = 0
    positions = torch.randint(0, 40, (3, batch, PROMPT + ACTIONS), generator=generator)
    types = torch.cat([torch.zeros(batch, PROMPT), torch.ones(batch, ACTIONS)], dim=1).long()

    def of_types(rows: Tensor) -> dict[str, Tensor]:
        return {"moe_token_types": rows} if name == "wall_x" else {}

    with torch.no_grad():
        cache = decoder(
            inputs_embeds=prompt,
            attention_mask=mask[:, :PROMPT],
            position_ids=positions[..., :PROMPT],
            use_cache=True,
            **of_types(types[:, :PROMPT]),
        ).past_key_values
        visible = torch.ones(ACTIONS, ACTIONS, dtype=torch.bool)
        visible = visible.tril() if name == "eo1" else visible
        shared = prepare(decoder, prompt, mask[:, :PROMPT].bool(), cache, positions[..., PROMPT:], visible)
        fast = denoise(shared, tokens)
        cache.batch_repeat_interleave(k)
        own = decoder(
            inputs_embeds=tokens,
            attention_mask=widen(mask, k),
            position_ids=positions[..., PROMPT:].repeat_interleave(k, dim=1),
            past_key_values=cache,
            use_cache=True,
            **of_types(widen(types, k)),
        ).last_hidden_state
    return own, fast


@pytest.mark.parametrize(("batch", "k"), [(1, 1), (1, 4), (3, 1), (3, 4)])
@pytest.mark.parametrize("name", ["eo1", "wall_x"])
def test_exact(name: str, batch: int, k: int) -> None:
    own, fast = both(name, batch, k, torch.float32)
    assert float((own - fast).abs().max()) <= 1e-5 * max(1.0, float(own.abs().max()))
    assert (own.view(batch, k, -1).std(dim=0, unbiased=False) > 1e-2).any() == (batch > 1), "rows do not differ"


@pytest.mark.parametrize("name", ["eo1", "wall_x"])
def test_bfloat16_is_as_close_as_it_can_be(name: str) -> None:
    exact, _ = both(name, 3, 4, torch.float32)
    errors = [float((output.float() - exact).abs().mean()) for output in both(name, 3, 4, torch.bfloat16)]
    assert errors[1] <= 1.2 * errors[0], "less exact than the decoder itself"


@pytest.mark.parametrize("name", ["eo1", "wall_x"])
def test_what_is_not_known_runs_as_it_is(name: str) -> None:
    decoder = copy.deepcopy(decoder_of(name, torch.float32))
    assert recognises(decoder)
    decoder.layers[0].self_attn.sliding_window = 4
    assert not recognises(decoder)
    decoder.layers[0].self_attn.sliding_window = None
    assert not recognises(decoder.train())
