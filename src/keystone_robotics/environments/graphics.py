"""Chooses MuJoCo's OpenGL backend before its import: if the backend fails to load, MuJoCo cannot be imported at all."""

from __future__ import annotations

import ctypes.util
import os
import sys

from keystone_robotics.errors import KeystoneError

LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}  #: the library that each backend needs
OFF = "disabled"  #: MuJoCo's value for physics without rendering


def choose_backend() -> None:
    """Set MUJOCO_GL to an available backend, or disable rendering, so that physics works without OpenGL."""
    if "mujoco" in sys.modules or sys.platform != "linux":
        if sys.platform == "darwin" and os.environ.get("MUJOCO_GL") in LIBRARIES:
            del os.environ["MUJOCO_GL"]  # macOS has its own backend and rejects these
        return
    wanted = os.environ.get("MUJOCO_GL", "").lower() or ("glfw" if os.environ.get("DISPLAY") else "egl")
    library = LIBRARIES.get(wanted)
    if library is not None and ctypes.util.find_library(library) is None:
        wanted = OFF
    os.environ["MUJOCO_GL"] = wanted


def no_graphics(error: object) -> KeystoneError:
    """The error for a failed rendering."""
    return KeystoneError(
        f"MuJoCo cannot render ({error}); MUJOCO_GL is {os.environ.get('MUJOCO_GL', 'not set')}. Without a display, install "
        "libegl1 and set MUJOCO_GL=egl, or libosmesa6 and MUJOCO_GL=osmesa"
    )
