"""Specifications as text: they are read, and written as they were read, or refused in one line."""

from __future__ import annotations

import contextlib

import numpy as np

from keystone_robotics import KeystoneError, Spec
from keystone_robotics.spec import options, options_from_environment

SEEDS = (
    "core-mean:k=16,temperature=0.8", "keystone:k=8,tau=0.5,clusters=3", "kde:k=4,whole=true", "first:temperature=0.6",
    'medoid:k=4,space={"dims": 7, "steps": "1:9", "gripper": {"6": 0.5}}', "coherent:k=16,share=0.5,decay=0.9", "medoid:k=auto",
)  # fmt: skip
PARTS = (
    "=", ",", ":", "{", "}", '"', "[", "]", "\\", "\n", "\x1b[2J", "\0", "1e400", "9" * 5000, "nan", "-1", "k", "None", "é",
)  # fmt: skip


def mutate(generator: np.random.Generator, text: str, parts: tuple[str, ...] = PARTS) -> str:
    """Text with some characters deleted, doubled or replaced."""
    for _ in range(generator.integers(1, 5)):
        place = int(generator.integers(len(text) + 1))
        end = min(len(text), place + int(generator.integers(0, 4)))
        middle = parts[generator.integers(len(parts))] if generator.random() < 0.7 else text[place:end] * 2
        text = text[:place] + middle + text[end:]
    return text


def attack_spec(generator: np.random.Generator) -> int:
    for _ in range(20):
        text = mutate(generator, SEEDS[generator.integers(len(SEEDS))])
        try:
            spec = Spec.parse(text)
        except (KeystoneError, ValueError, TypeError):
            continue
        assert Spec.parse(str(spec)) == spec, f"{text[:100]!r} is not read as it is written"
    return 20


def attack_environment(generator: np.random.Generator) -> int:
    names = [*options(), "SERVICE_HOST", "PORT", "AUTH_URL"]
    for _ in range(20):
        name = names[generator.integers(len(names))].upper()
        name = mutate(generator, name) if generator.random() < 0.3 else name
        with contextlib.suppress(KeystoneError):
            options_from_environment({f"KEYSTONE_{name}": mutate(generator, str(generator.integers(100)))})
    return 20
