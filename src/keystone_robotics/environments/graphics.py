"""Which OpenGL MuJoCo uses. It decides when it is imported, and where that fails, nothing of it works, not even physics."""

from __future__ import annotations

import ctypes.util
import os
import sys

from keystone_robotics.errors import KeystoneError

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  #: which library each backend needs
OFF = "disabled"  #: MuJoCo's own word for "physics only"


def choose_backend() -> None:
    """Before MuJoCo is imported: a backend that is there, or none, so that everything but pictures works anywhere."""
    if "mujoco" in sys.modules or sys.platform != "linux":
        if sys.platform == "darwin" and os.environ.get("MUJOCO_GL") in LIBRARIES:
            del os.environ["MUJOCO_GL"]  # it has its own there, and refuses these
        return
    wanted = os.environ.get("MUJOCO_GL", "").lower() or ("glfw" if os.environ.get("DISPLAY") else "egl")
    library = LIBRARIES.get(wanted)
    if library is not None and ctypes.util.find_library(library) is None:
        wanted = OFF
    os.environ["MUJOCO_GL"] = wanted


def no_graphics(error: object) -> KeystoneError:
    """What to say where a picture cannot be drawn."""
    return KeystoneError(
        f"MuJoCo cannot draw here ({error}); MUJOCO_GL is {os.environ.get('MUJOCO_GL', 'not set')}. Without a screen it takes "
        "libegl1 and MUJOCO_GL=egl, or libosmesa6 and MUJOCO_GL=osmesa"
    )
