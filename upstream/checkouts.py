"""Where other projects' code lies, and at which commit the adapters were last tested against it."""

import os
import subprocess
import sys
from pathlib import Path

#: Folder in $KEYSTONE_UPSTREAM -> (repository, the commit that the adapters were last tested against).
CHECKOUTS = {
    "Isaac-GR00T-N1.5": ("https://github.com/NVIDIA/Isaac-GR00T", "4af2b62"),
    "Isaac-GR00T-N1.6": ("https://github.com/NVIDIA/Isaac-GR00T", "e29d8fc"),
    "Isaac-GR00T-N1.7": ("https://github.com/NVIDIA/Isaac-GR00T", "b995540"),
    "starVLA": ("https://github.com/starVLA/starVLA", "0ed0aad"),
    "starVLA-eaa51c4": ("https://github.com/starVLA/starVLA", "eaa51c4"),
    "starVLA-23f3788": ("https://github.com/starVLA/starVLA", "23f3788"),
    "X-VLA": ("https://github.com/2toinf/X-VLA", "7a6c08a"),
    "X-VLA-d622be6": ("https://github.com/2toinf/X-VLA", "d622be6"),
    "openpi": ("https://github.com/Physical-Intelligence/openpi", "15a9616"),
    "diffusion_policy": ("https://github.com/real-stanford/diffusion_policy", "5ba07ac"),
    "3D-Diffusion-Policy": ("https://github.com/YanjieZe/3D-Diffusion-Policy", "47385d9"),
    "CogACT": ("https://github.com/microsoft/CogACT", "b174a1b"),
    "InternVLA-M1": ("https://github.com/InternRobotics/InternVLA-M1", "949223b"),
    "dexbotic": ("https://github.com/Dexmal/dexbotic", "9bed670"),
    "RoboticsDiffusionTransformer": ("https://github.com/thu-ml/RoboticsDiffusionTransformer", "deb71d8"),
    "H_RDT": ("https://github.com/HongzheBi/H_RDT", "8be02cb"),
    "openvla-oft": ("https://github.com/moojink/openvla-oft", "213c5ff"),
    "lerobot-main": ("https://github.com/huggingface/lerobot", "7427f31"),
    "FastWAM": ("https://github.com/yuantianyuan01/FastWAM", "45d8e14"),
}


GROOT = "torch torchvision transformers==4.57.3 diffusers einops timm dm-tree peft pydantic omegaconf albumentations av"

#: What an environment for the tests of a checkout needs, besides this repository and pytest. Not tried in a fresh one.
PACKAGES = {
    "Isaac-GR00T-N1.5": GROOT,
    "Isaac-GR00T-N1.6": GROOT,
    "Isaac-GR00T-N1.7": GROOT,
    "starVLA": "torch transformers==4.57.3 diffusers omegaconf",
    "starVLA-eaa51c4": "torch transformers==4.57.3 diffusers omegaconf",
    "starVLA-23f3788": "torch transformers==4.57.3 diffusers omegaconf",
    "X-VLA": "torch torchvision transformers==4.57.3 timm einops fastapi uvicorn json-numpy",
    "X-VLA-d622be6": "torch torchvision transformers==4.57.3 timm einops fastapi uvicorn json-numpy",
    "openpi": "checkouts/openpi transformers==4.53.2",
    "diffusion_policy": "torch torchvision transformers==4.57.3 diffusers einops zarr numba termcolor dill omegaconf",
    "3D-Diffusion-Policy": "torch torchvision transformers==4.57.3 diffusers einops zarr numba termcolor dill omegaconf",
    "CogACT": "torch transformers==4.57.3 timm",
    "InternVLA-M1": "torch transformers==4.57.3 timm",
    "dexbotic": "torch transformers==4.57.3 timm",
    "RoboticsDiffusionTransformer": "torch transformers==4.57.3 diffusers timm huggingface-hub",
    "H_RDT": "torch transformers==4.57.3 timm huggingface-hub",
    "openvla-oft": "torch transformers==4.57.3 diffusers timm",
    "lerobot-main": "checkouts/lerobot-main[all]",
    "FastWAM": "torch torchvision transformers==4.57.3 einops safetensors omegaconf",
}


class NoCheckout(Exception):
    """The code is not there; the message says how to get it."""


def importable(name: str, *sources: str) -> Path:
    """The folder of a checkout, with the named folders in it (default: itself) importable.

    Raises:
        NoCheckout: if it is not there.
    """
    repository, commit = CHECKOUTS[name]
    how = f"git clone {repository} $KEYSTONE_UPSTREAM/{name} && git -C $KEYSTONE_UPSTREAM/{name} checkout {commit}"
    root = os.environ.get("KEYSTONE_UPSTREAM")
    if not root:
        raise NoCheckout(f"KEYSTONE_UPSTREAM is not set: the folder that holds the checkouts, among them\n  {how}")
    folder = Path(root).expanduser().resolve() / name
    if not folder.is_dir():
        raise NoCheckout(f"no checkout of {repository} (commit {commit}) at {folder}. To make one:\n  {how}")
    for source in sources or (".",):
        path = str(folder / source)
        if path not in sys.path:
            sys.path.insert(0, path)
    return folder


def commit_of(folder: Path) -> str:
    """The first seven digits of the commit that is checked out."""
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
