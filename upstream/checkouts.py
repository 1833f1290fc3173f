"""Where other projects' code lies, and at which commit the adapters were last tested against it."""

import os
import subprocess
import sys
from dataclasses import astuple, dataclass
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Checkout:
    """Another project's code, and what its tests need.

    Attributes:
        repository: address.
        commit: that the adapters were last tested against; all 40 digits, by which GitHub also gives out the commits of pull
            requests.
        tests: the file in this folder, without its ending.
        packages: what the environment needs besides this repository and pytest; ``{folder}`` is the checkout's.
    """

    repository: str
    commit: str
    tests: str
    packages: str


GROOT = "https://github.com/NVIDIA/Isaac-GR00T"
GROOT_PACKAGES = (
    "torch torchvision transformers==4.57.3 diffusers einops timm dm-tree peft pydantic omegaconf albumentations av tyro "
    "pandas numpydantic termcolor"
)
STARVLA = "https://github.com/starVLA/starVLA"
STARVLA_PACKAGES = "torch transformers==4.57.3 diffusers omegaconf"
XVLA = "https://github.com/2toinf/X-VLA"
XVLA_PACKAGES = (
    "torch torchvision transformers==4.57.3 timm einops fastapi uvicorn json-numpy msgpack msgpack-numpy "
    "opencv-python-headless"
)
DIFFUSION_PACKAGES = "torch torchvision transformers==4.57.3 diffusers einops zarr numba termcolor dill omegaconf"
COGACT_PACKAGES = "torch transformers==4.57.3 timm"

#: Folder in $KEYSTONE_UPSTREAM -> what it holds.
CHECKOUTS = {
    "Isaac-GR00T-N1.5": Checkout(
        GROOT,
        "4af2b622892f7dcb5aae5a3fb70bcb02dc217b96",
        "test_isaac_groot_n1d5",
        GROOT_PACKAGES,
    ),
    "Isaac-GR00T-N1.6": Checkout(
        GROOT,
        "e29d8fc50b0e4745120ae3fb72447986fe638aa6",
        "test_isaac_groot_n1d6",
        GROOT_PACKAGES,
    ),
    "Isaac-GR00T-N1.7": Checkout(
        GROOT,
        "b9955401d50c92a29258732e3ad6ccd579f1bdc0",
        "test_isaac_groot_n1d7",
        GROOT_PACKAGES,
    ),
    "Isaac-GR00T-2ea60d6": Checkout(
        GROOT,
        "2ea60d6d388d08fcc734dd339c6e183fdab5309c",
        "test_isaac_groot_n1d7_kv_cache",
        GROOT_PACKAGES,
    ),
    "starVLA": Checkout(
        STARVLA,
        "0ed0aad2c83f587714f6167ef60cf7218b786590",
        "test_starvla",
        STARVLA_PACKAGES,
    ),
    "starVLA-eaa51c4": Checkout(
        STARVLA,
        "eaa51c4c2f4012d42f1036ee318d41942e8f97a3",
        "test_starvla_eaa51c4",
        STARVLA_PACKAGES,
    ),
    "starVLA-23f3788": Checkout(
        STARVLA,
        "23f37884243fde8466760743107075a16e48d3fa",
        "test_starvla_v4",
        STARVLA_PACKAGES,
    ),
    "X-VLA": Checkout(
        XVLA,
        "7a6c08ae385b8bee6a8a1c74d10766ca232d2a91",
        "test_x_vla",
        XVLA_PACKAGES,
    ),
    "X-VLA-d622be6": Checkout(
        XVLA,
        "d622be65d5a29a540eb4a3e3a002db8fbdc7165c",
        "test_x_vla_d622be6",
        XVLA_PACKAGES,
    ),
    "openpi": Checkout(
        "https://github.com/Physical-Intelligence/openpi",
        "15a9616a00943ada6c20a0f158e3adb39df2ccac",
        "test_openpi",
        "torch transformers==4.53.2 numpy<2 jax==0.5.3 flax==0.10.2 beartype==0.19.0 jaxtyping==0.2.36 "
        "orbax-checkpoint==0.11.13 chex==0.1.90 ml_collections==1.0.0 ml-dtypes==0.4.1 tensorstore==0.1.74 augmax dm-tree "
        "einops equinox fsspec[gcs] numpydantic opencv-python-headless openpi-client polars sentencepiece tqdm-loggable "
        "treescope tyro websockets",
    ),
    "diffusion_policy": Checkout(
        "https://github.com/real-stanford/diffusion_policy",
        "5ba07ac6661db573af695b419a7947ecb704690f",
        "test_diffusion_policy",
        DIFFUSION_PACKAGES,
    ),
    "3D-Diffusion-Policy": Checkout(
        "https://github.com/YanjieZe/3D-Diffusion-Policy",
        "47385d9d6f5bde3f2ebdf2400ecb8261cc9e6b97",
        "test_dp3",
        DIFFUSION_PACKAGES,
    ),
    "CogACT": Checkout(
        "https://github.com/microsoft/CogACT",
        "b174a1b86deedfab4d198d935207e7bb0527994e",
        "test_cogact",
        COGACT_PACKAGES,
    ),
    "InternVLA-M1": Checkout(
        "https://github.com/InternRobotics/InternVLA-M1",
        "949223b51a34e309fb1b02be8a635a12f17b4c91",
        "test_internvla_m1",
        COGACT_PACKAGES,
    ),
    "dexbotic": Checkout(
        "https://github.com/Dexmal/dexbotic",
        "9bed67058a424fdb3accd5185320b383133ff175",
        "test_dexbotic",
        COGACT_PACKAGES,
    ),
    "RoboticsDiffusionTransformer": Checkout(
        "https://github.com/thu-ml/RoboticsDiffusionTransformer",
        "deb71d82278780d83253a28d9b904085559be400",
        "test_rdt",
        "torch transformers==4.57.3 diffusers timm huggingface-hub",
    ),
    "H_RDT": Checkout(
        "https://github.com/HongzheBi/H_RDT",
        "8be02cb5e631898dfab12f9b6bbb77e32999547a",
        "test_h_rdt",
        "torch transformers==4.57.3 timm huggingface-hub",
    ),
    "openvla-oft": Checkout(
        "https://github.com/moojink/openvla-oft",
        "213c5ff8d6e9673885d7e4dd6f2ce73b5d8a45db",
        "test_openvla_oft",
        "torch git+https://github.com/moojink/transformers-openvla-oft@bc339d9ad707454c0c115970db43c260067c61ab diffusers "
        "timm",
    ),
    "cosmos-policy": Checkout(
        "https://github.com/NVlabs/cosmos-policy",
        "18a2accadf4e7a3531e56754102af5a24d2316da",
        "test_cosmos_policy",
        "torch torchvision einops attrs hydra-core fvcore iopath loguru",
    ),
    "dreamzero": Checkout(
        "https://github.com/dreamzero0/dreamzero",
        "ab790c198fbce33503358efbbd4187ce9a89adf3",
        "test_dreamzero",
        "torch torchvision transformers==4.57.3 diffusers accelerate peft hydra-core einops safetensors",
    ),
    "lerobot-main": Checkout(
        "https://github.com/huggingface/lerobot",
        "7427f31801f944f5ec9ce53cda02862ce7d1638b",
        "test_lerobot_main",
        "{folder}[pi,molmoact2,fastwam,vla_jepa]",
    ),
    "octo": Checkout(
        "https://github.com/octo-models/octo",
        "241fb3514b7c40957a86d869fecb7c7fc353f540",
        "test_octo",
        "torch jax flax einops",
    ),
    "roboarena": Checkout(
        "https://github.com/robo-arena/roboarena",
        "6fa329fd1cab0ae536d60361784fcd1f87a4daf9",
        "test_serve_clients",
        "torch websockets msgpack msgpack-numpy pyzmq typing-extensions",
    ),
    "FastWAM": Checkout(
        "https://github.com/yuantianyuan01/FastWAM",
        "45d8e1458921d83f8ad6cf9ce993d371208dabd0",
        "test_fast_wam",
        "torch torchvision transformers==4.57.3 einops safetensors omegaconf imageio rich",
    ),
}


class NoCheckout(Exception):
    """The code is not there; the message says how to get it."""


def importable(name: str, *sources: str) -> Path:
    """The folder of a checkout, with the named folders in it (default: itself) importable.

    Raises:
        NoCheckout: if it is not there.
    """
    how = f"make upstream NAME={name} makes one, with an environment for its tests"
    root = os.environ.get("KEYSTONE_UPSTREAM")
    if not root:
        raise NoCheckout(f"KEYSTONE_UPSTREAM is not set, the folder that holds the checkouts: {how}")
    folder = Path(root).expanduser().resolve() / name
    if not folder.is_dir():
        raise NoCheckout(f"no checkout of {CHECKOUTS[name].repository} at {folder}: {how}")
    for source in sources or (".",):
        path = str(folder / source)
        if path not in sys.path:
            sys.path.insert(0, path)
    return folder


def without(*modules: str) -> None:
    """Replace packages that a project imports, and whose functions the tests do not reach, by empty modules."""
    for name in modules:
        sys.modules.setdefault(name, ModuleType(name))


def commit_of(folder: Path) -> str:
    """The first seven digits of the commit that is checked out."""
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":  # for scripts/upstream.sh: a field a line
    if sys.argv[1] not in CHECKOUTS:
        sys.exit(f"no checkout {sys.argv[1]!r}: expected one of {', '.join(CHECKOUTS)}")
    print(*astuple(CHECKOUTS[sys.argv[1]]), sep="\n")
