"""Benchmarks as gymnasium environments. Needs the extra ``eval``; a new benchmark is one file and one line here."""

from __future__ import annotations

from keystone_robotics.environments.aloha import Aloha
from keystone_robotics.environments.benchmark import Array, Benchmark, Observation
from keystone_robotics.environments.lerobot import LEROBOT, LeRobotBenchmark
from keystone_robotics.environments.metaworld import MetaWorld
from keystone_robotics.environments.ogbench import OGBench
from keystone_robotics.environments.pusht import PushT, PushTPixels
from keystone_robotics.environments.registered import GYMNASIUM, Registered
from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.named import is_reference, make_named

__all__ = ["BENCHMARKS", "Array", "Benchmark", "Observation", "find_benchmark"]

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (MetaWorld(), PushT(), PushTPixels(), OGBench(), Aloha())
}


def find_benchmark(name: str, max_steps: int | None = None) -> Benchmark:
    """A benchmark by name.

    One of `BENCHMARKS`; a LeRobot environment, ``lerobot:libero`` or ``lerobot:libero?task=libero_10``; one of gymnasium's
    registry, ``gymnasium:MountainCarContinuous-v0?min_return=90``; or ``package.module:Name?option=value`` of a `Benchmark`,
    its class or a function that returns one.

    Args:
        name: of the benchmark.
        max_steps: the caller's step limit, for environments that judge an episode when they end it; others are not told.

    >>> find_benchmark("metaworld").name
    'metaworld'
    >>> find_benchmark("metawurld")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: unknown environment 'metawurld': did you mean 'metaworld'? ...
    """
    if name.startswith(LEROBOT):
        return LeRobotBenchmark(name)
    if name.startswith(GYMNASIUM):
        return Registered(name, max_steps)
    if is_reference(name):
        return make_named(name, Benchmark)
    base, question, _ = name.partition("?")
    if question and base in BENCHMARKS:
        raise KeystoneError(f"{base} takes no options ({name!r}): give --env {base}, and tasks with --tasks")
    if name not in BENCHMARKS:
        known = [*BENCHMARKS, f"{LEROBOT}TYPE", f"{GYMNASIUM}ID", "package.module:Name"]
        raise KeystoneError(f"unknown environment {name!r}: {nearest_name(name, known)}")
    return BENCHMARKS[name]
