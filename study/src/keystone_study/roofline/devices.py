"""Accelerators: data-sheet numbers and assumed launch costs."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from keystone_robotics.errors import KeystoneError, nearest_name


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes:
        title: display name.
        bandwidth: of its memory, in GB/s, from the data sheet.
        tflops: dense bfloat16 with float32 accumulation, in TFLOP/s, from the data sheet (half the figure "with sparsity").
        eager_us: microseconds of host time for one operation of eager PyTorch. Assumed, knowing four of the five timings in
            `keystone_study.roofline.table` (all but the RTX 5090's): 18 for a desktop processor, more for an embedded one.
        graph_us: microseconds for one kernel of a captured graph. Assumed.
    """

    title: str
    bandwidth: float
    tflops: float
    eager_us: float
    graph_us: float


DEVICES: dict[str, Device] = {
    "a6000": Device("RTX A6000", 768, 155, 18, 3),
    "3090": Device("RTX 3090", 936, 71, 18, 3),
    "4090": Device("RTX 4090", 1008, 165, 18, 3),
    "5090": Device("RTX 5090", 1792, 209.5, 18, 3),
    "l40s": Device("L40S", 864, 362, 18, 3),
    "a100": Device("A100 SXM 80 GB", 2039, 312, 18, 3),
    "h100": Device("H100 SXM", 3350, 989, 18, 2.5),
    "orin": Device("Jetson AGX Orin", 204.8, 42, 60, 6),
    "thor": Device("Jetson AGX Thor", 273, 258, 25, 5),
}


#: Host time of a desktop processor, the default for a device that is not listed.
EAGER_US, GRAPH_US = 18.0, 3.0


def find_device(
    name: str,
    bandwidth: float | None = None,
    tflops: float | None = None,
    eager_us: float | None = None,
    graph_us: float | None = None,
) -> Device:
    """A listed device by name (spelling variants are accepted), optionally with other numbers; or any device by its numbers.

    Args:
        name: a key of `DEVICES`, or any name if bandwidth and tflops are given.
        bandwidth, tflops, eager_us, graph_us: see `Device`; None keeps the known or assumed value.

    >>> find_device("NVIDIA GeForce RTX 4090").bandwidth, find_device("RTX-4090", eager_us=30).eager_us
    (1008, 30)
    >>> find_device("NVIDIA A100-SXM4-80GB") == find_device("A100 SXM 80 GB")
    True
    >>> find_device("RTX 4000 Ada", bandwidth=360, tflops=107)
    Device(title='RTX 4000 Ada', bandwidth=360, tflops=107, eager_us=18.0, graph_us=3.0)
    >>> find_device("a600")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: there are no numbers for the device 'a600': did you mean 'a6000'? ...
    """
    numbers = {"bandwidth": bandwidth, "tflops": tflops, "eager_us": eager_us, "graph_us": graph_us}
    given = {key: value for key, value in numbers.items() if value is not None}
    for key, value in given.items():
        if not 0 < value < float("inf"):
            raise KeystoneError(f"{key}={value!r}: expected a number above 0")
    plain = re.sub(r"nvidia|geforce|jetson|agx|rtx|sxm\d?|pcie|\d+ ?gb|[ _-]", "", name.lower())
    if plain in DEVICES:
        known = DEVICES[plain]
        return dataclasses.replace(known, title=f"{known.title} (own numbers)", **given) if given else known
    if bandwidth is None or tflops is None:
        raise KeystoneError(
            f"there are no numbers for the device {name!r}: {nearest_name(plain, DEVICES)}; for another one give its bandwidth "
            "in GB/s and its dense bfloat16 tflops"
        )
    return Device(name, **{"eager_us": EAGER_US, "graph_us": GRAPH_US, **given})
