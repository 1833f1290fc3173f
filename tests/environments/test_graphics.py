"""Which OpenGL is asked for, before MuJoCo is imported."""

import ctypes.util
import os
import sys

import pytest

from keystone_robotics.environments.graphics import OFF, choose_backend


@pytest.mark.parametrize(
    ("platform", "display", "asked", "there", "expected"),
    [
        ("linux", None, None, {"EGL"}, "egl"),
        ("linux", None, None, set(), OFF),
        ("linux", ":0", None, set(), "glfw"),
        ("linux", None, "egl", set(), OFF),
        ("linux", None, "osmesa", {"EGL"}, OFF),
        ("linux", None, "osmesa", {"OSMesa"}, "osmesa"),
        ("linux", None, "off", set(), "off"),
        ("darwin", None, "egl", set(), None),
        ("darwin", None, None, set(), None),
    ],
)
def test_a_backend_that_is_there(monkeypatch, platform, display, asked, there, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: name if name in there else None)
    monkeypatch.delitem(sys.modules, "mujoco", raising=False)
    for name, value in (("DISPLAY", display), ("MUJOCO_GL", asked)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    choose_backend()
    assert os.environ.get("MUJOCO_GL") == expected


def test_what_is_imported_already_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", object())
    monkeypatch.setenv("MUJOCO_GL", "whatever")
    choose_backend()
    assert os.environ["MUJOCO_GL"] == "whatever"
