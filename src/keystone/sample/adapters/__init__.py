"""The adapters by name of the policy family. A new one is one short file and one line here."""

from __future__ import annotations

from keystone.sample.adapter import Adapter
from keystone.sample.adapters.diffusion import DiffusionAdapter
from keystone.sample.adapters.encode_sample import EncodeSampleAdapter
from keystone.sample.adapters.eo1 import EO1Adapter
from keystone.sample.adapters.evo1 import Evo1Adapter
from keystone.sample.adapters.fast_wam import OwnFastWAMAdapter
from keystone.sample.adapters.fastwam import FastWAMAdapter
from keystone.sample.adapters.groot import GrootAdapter
from keystone.sample.adapters.isaac_groot import IsaacGrootAdapter
from keystone.sample.adapters.molmoact2 import MolmoAct2Adapter
from keystone.sample.adapters.multi_task_dit import MultiTaskDiTAdapter
from keystone.sample.adapters.openpi import OpenPiAdapter
from keystone.sample.adapters.openpi_jax import OpenPiJaxAdapter
from keystone.sample.adapters.pi0 import Pi0Adapter, Pi05Adapter
from keystone.sample.adapters.refused import ACTAdapter, LingBotVAAdapter, PI0FastAdapter
from keystone.sample.adapters.smolvla import SmolVLAAdapter
from keystone.sample.adapters.starvla import StarVLAAdapter
from keystone.sample.adapters.vla_jepa import VLAJEPAAdapter
from keystone.sample.adapters.wall_x import WallXAdapter
from keystone.sample.adapters.x_vla import OwnXVLAAdapter
from keystone.sample.adapters.xvla import XVLAAdapter

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
        EncodeSampleAdapter(),
    )
}
