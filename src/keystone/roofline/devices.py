"""Accelerators by their vendor's numbers, and what it costs to start a kernel on them."""

from __future__ import annotations

from dataclasses import dataclass

from keystone.errors import KeystoneError, nearest_name


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes:
        title: as people call it.
        bandwidth: of its memory, in GB/s, from the data sheet.
        tflops: dense bfloat16 with float32 accumulation, in TFLOP/s, from the data sheet (half the figure "with sparsity").
        eager_us: microseconds of host time for one operation of eager PyTorch. Assumed, knowing four of the five timings in
            `keystone.roofline.published` (all but the RTX 5090's): 18 for a desktop processor, more for an embedded one.
        graph_us: microseconds for one kernel of a captured graph. Assumed.
    """

    title: str
    bandwidth: float
    tflops: float
    eager_us: float
    graph_us: float


DEVICES: dict[str, Device] = {
    "a6000": Device("RTX A6000", 768, 155, 18, 3),
    "4090": Device("RTX 4090", 1008, 165, 18, 3),
    "5090": Device("RTX 5090", 1792, 209.5, 18, 3),
    "h100": Device("H100 SXM", 3350, 989, 18, 2.5),
    "orin": Device("Jetson AGX Orin", 204.8, 42, 60, 6),
    "thor": Device("Jetson AGX Thor", 273, 258, 25, 5),
}


def find_device(name: str) -> Device:
    """A device by its name, however it is spelt.

    >>> find_device("RTX-4090").bandwidth
    1008
    >>> find_device("a600")
    Traceback (most recent call last):
    keystone.errors.KeystoneError: there are no numbers for the device 'a600': did you mean 'a6000'? ...
    """
    plain = name.lower()
    for word in ("nvidia", "jetson", "agx", "rtx", "sxm", " ", "-", "_"):
        plain = plain.replace(word, "")
    if plain not in DEVICES:
        raise KeystoneError(f"there are no numbers for the device {name!r}: {nearest_name(plain, DEVICES)}")
    return DEVICES[plain]
