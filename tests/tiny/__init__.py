"""Real LeRobot policy classes with tiny random weights, built offline in seconds.

policy = build("pi05", num_inference_steps=2)
chunk = POLICIES["pi05"].predict(policy, batch("pi05", batch_size=3, seed=0))     # (3, 10, 6)
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Some virtual machines advertise AMX without allowing it: bfloat16 matrix products then die of SIGILL.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

from typing import Any

from lerobot.policies.pretrained import PreTrainedPolicy

from . import (
    act,
    diffusion,
    eo1,
    evo1,
    fastwam,
    groot,
    lingbot_va,
    molmoact2,
    multi_task_dit,
    pi,
    pi0_fast,
    smolvla,
    vla_jepa,
    wall_x,
    xvla,
)
from .common import Batch, TinyPolicy, language_batch

__all__ = ["POLICIES", "Batch", "TinyPolicy", "batch", "build"]

POLICIES: dict[str, TinyPolicy] = {
    policy.name: policy
    for policy in (
        TinyPolicy("pi05", pi.build_pi05, language_batch),
        TinyPolicy("pi0", pi.build_pi0, language_batch),
        TinyPolicy("smolvla", smolvla.build, language_batch),
        TinyPolicy("xvla", xvla.build, language_batch),
        TinyPolicy("groot", groot.build, groot.batch, (5, 6), slicer=groot.row),
        TinyPolicy("fastwam", fastwam.build, fastwam.batch, (8, 6)),
        TinyPolicy("diffusion", diffusion.build, language_batch, (8, 6), predictor=diffusion.predict),
        TinyPolicy(
            "multi_task_dit",
            multi_task_dit.build,
            language_batch,
            (8, 6),
            predictor=multi_task_dit.predict,
        ),
        TinyPolicy("evo1", evo1.build, language_batch, (10, 8)),
        TinyPolicy("vla_jepa", vla_jepa.build, language_batch),
        TinyPolicy("eo1", eo1.build, eo1.batch, (8, 6), slicer=eo1.row),
        TinyPolicy("molmoact2", molmoact2.build, molmoact2.batch, (5, 6)),
        TinyPolicy("pi0_fast", pi0_fast.build, language_batch, (5, 6), stochastic=False),
        TinyPolicy("wall_x", wall_x.build, language_batch, (8, 6)),
        TinyPolicy("lingbot_va", lingbot_va.build, language_batch, (4, 6), batch_sizes=(1,)),
        TinyPolicy("act", act.build, language_batch, stochastic=False),
    )
}


def build(name: str, **overrides: Any) -> PreTrainedPolicy:
    """The tiny policy called `name`, its config changed by `overrides`."""
    return POLICIES[name].build(**overrides)


def batch(name: str, batch_size: int = 1, seed: int = 0) -> Batch:
    """A random observation batch for the tiny policy called `name`."""
    return POLICIES[name].batch(batch_size, seed)
