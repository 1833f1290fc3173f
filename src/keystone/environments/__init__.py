"""Benchmarks as gymnasium environments. Needs the extra ``eval``; a new benchmark is one short file and one line here."""

from __future__ import annotations

from keystone.environments.benchmark import Array, Benchmark, Observation
from keystone.environments.lerobot import LEROBOT, LeRobotBenchmark
from keystone.environments.metaworld import MetaWorld
from keystone.environments.pusht import PushT
from keystone.errors import KeystoneError, nearest_name

__all__ = ["BENCHMARKS", "Array", "Benchmark", "Observation", "find_benchmark"]

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in (MetaWorld(), PushT())}


def find_benchmark(name: str) -> Benchmark:
    """A benchmark by name; ``lerobot:libero`` or ``lerobot:libero?task=libero_10`` is one of LeRobot's environments.

    >>> find_benchmark("metaworld").name
    'metaworld'
    >>> find_benchmark("metawurld")
    Traceback (most recent call last):
    keystone.errors.KeystoneError: unknown environment 'metawurld': did you mean 'metaworld'? ...
    """
    if name.startswith(LEROBOT):
        return LeRobotBenchmark(name)
    if name not in BENCHMARKS:
        raise KeystoneError(f"unknown environment {name!r}: {nearest_name(name, [*BENCHMARKS, LEROBOT + 'TYPE'])}")
    return BENCHMARKS[name]
