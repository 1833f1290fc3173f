"""The registry of adapters, by policy family."""

from __future__ import annotations

from keystone_robotics.sample.adapter import Adapter
from keystone_robotics.sample.families.cogact.upstream import CogACTAdapter
from keystone_robotics.sample.families.cosmos_policy.upstream import CosmosPolicyAdapter
from keystone_robotics.sample.families.diffusion.lerobot import DiffusionAdapter
from keystone_robotics.sample.families.diffusion.upstream import OwnDiffusionAdapter
from keystone_robotics.sample.families.dreamzero.upstream import DreamZeroAdapter
from keystone_robotics.sample.families.encode_sample import EncodeSampleAdapter
from keystone_robotics.sample.families.evo1.lerobot import Evo1Adapter
from keystone_robotics.sample.families.fastwam.lerobot import FastWAMAdapter
from keystone_robotics.sample.families.fastwam.upstream import OwnFastWAMAdapter
from keystone_robotics.sample.families.groot.isaac import IsaacGrootAdapter
from keystone_robotics.sample.families.groot.lerobot import GrootAdapter
from keystone_robotics.sample.families.groot.starvla import StarVLAAdapter
from keystone_robotics.sample.families.molmoact2.lerobot import MolmoAct2Adapter
from keystone_robotics.sample.families.multi_task_dit.lerobot import MultiTaskDiTAdapter
from keystone_robotics.sample.families.openvla_oft.upstream import OpenVLAOFTAdapter
from keystone_robotics.sample.families.pi.lerobot import Pi0Adapter, Pi05Adapter
from keystone_robotics.sample.families.pi.openpi import OpenPiAdapter
from keystone_robotics.sample.families.pi.openpi_jax import OpenPiJaxAdapter
from keystone_robotics.sample.families.qwen.eo1 import EO1Adapter
from keystone_robotics.sample.families.qwen.wall_x import WallXAdapter
from keystone_robotics.sample.families.rdt.h_rdt import HRDTAdapter
from keystone_robotics.sample.families.rdt.rdt import RDTAdapter
from keystone_robotics.sample.families.refused import ACTAdapter, LingBotVAAdapter, PI0FastAdapter
from keystone_robotics.sample.families.smolvla.lerobot import SmolVLAAdapter
from keystone_robotics.sample.families.vla_jepa.lerobot import VLAJEPAAdapter
from keystone_robotics.sample.families.xvla.lerobot import XVLAAdapter
from keystone_robotics.sample.families.xvla.upstream import OwnXVLAAdapter

ADAPTERS: dict[str, Adapter] = {
    adapter.name: adapter
    for adapter in (
        DiffusionAdapter(),
        EO1Adapter(),
        Evo1Adapter(),
        FastWAMAdapter(),
        GrootAdapter(),
        MolmoAct2Adapter(),
        MultiTaskDiTAdapter(),
        OpenPiAdapter(),
        OpenPiJaxAdapter(),
        Pi0Adapter(),
        Pi05Adapter(),
        SmolVLAAdapter(),
        VLAJEPAAdapter(),
        WallXAdapter(),
        XVLAAdapter(),
        ACTAdapter(),
        LingBotVAAdapter(),
        PI0FastAdapter(),
        IsaacGrootAdapter(),
        StarVLAAdapter(),
        OwnXVLAAdapter(),
        OwnFastWAMAdapter(),
        OwnDiffusionAdapter(),
        CogACTAdapter(),
        RDTAdapter(),
        HRDTAdapter(),
        OpenVLAOFTAdapter(),
        CosmosPolicyAdapter(),
        DreamZeroAdapter(),
        EncodeSampleAdapter(),
    )
}
