"""An attack that can be repeated: `TARGETS` by name, each a function of a seeded generator that raises if something gives way.

    make fuzz FUZZ_SECONDS=600                             # all targets in turn
    PYTHONPATH=tests python -m fuzz --seconds 60 --only select spec   # some of them
    PYTHONPATH=tests python -m fuzz --only select --seed 17 --count 1 # one case again

A case that does not end is reported with its target, its seed and a traceback, and ends the process.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Mapping

import numpy as np

from fuzz.files import attack_readers, attack_stores
from fuzz.messages import attack_groot, attack_lerobot, attack_openpi, attack_roboarena, attack_starvla
from fuzz.selection import attack_paths, attack_user_rules
from fuzz.sockets import attack_sockets
from fuzz.text import attack_environment, attack_spec

#: What is attacked. A function returns how many things it tried.
TARGETS: dict[str, Callable[[np.random.Generator], int]] = {
    "select": attack_paths,
    "user rules": attack_user_rules,
    "spec": attack_spec,
    "environment": attack_environment,
    "readers": attack_readers,
    "stores": attack_stores,
    "openpi": attack_openpi,
    "roboarena": attack_roboarena,
    "starvla": attack_starvla,
    "groot": attack_groot,
    "lerobot": attack_lerobot,
    "sockets": attack_sockets,
}

#: Seconds after which a case counts as hanging; the first may compile the kernel, on a busy machine.
HANGS = 300.0


class Failed(Exception):
    """A case that gave way; the message repeats it."""


def run(
    targets: Mapping[str, Callable[[np.random.Generator], int]], seconds: float, count: int, seed: int
) -> dict[str, tuple[int, int]]:
    """Attack every target in turn until the time is over or each had ``count`` cases; (cases, things tried) by target."""
    tried = dict.fromkeys(targets, (0, 0))
    end = time.monotonic() + seconds
    for case in range(seed, seed + count):
        for name, attack in targets.items():
            if time.monotonic() > end:
                return tried
            faulthandler.dump_traceback_later(HANGS, exit=True)
            try:
                things = attack(np.random.default_rng([case, *name.encode()]))
            except Exception as error:
                raise Failed(f"python -m fuzz --only '{name}' --seed {case} --count 1: {error!r}") from error
            finally:
                faulthandler.cancel_dump_traceback_later()
            tried[name] = tried[name][0] + 1, tried[name][1] + things
    return tried
