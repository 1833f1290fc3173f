"""Policies that cannot be attached to, with the reason."""

from __future__ import annotations

from keystone_robotics.sample.adapter import Adapter


class ACTAdapter(Adapter):
    """ACT."""

    name = "act"
    refusal = "ACT is deterministic (its latent is zero at inference), so all K candidates would be equal"


class PI0FastAdapter(Adapter):
    """π0-FAST."""

    name = "pi0_fast"
    refusal = (
        "π0-FAST decodes its tokens greedily, so all K candidates would be equal. A temperature above 0 in its config would "
        "make it stochastic, but it samples token by token: it has no noise to draw K times and no denoiser to share"
    )


class LingBotVAAdapter(Adapter):
    """LingBot-VA."""

    name = "lingbot_va"
    refusal = (
        "LingBot-VA takes one observation at a time into a streaming cache that every chunk writes to, and draws two noises "
        "per chunk (video and actions): K candidates would need K copies of the cache and K imagined videos"
    )
