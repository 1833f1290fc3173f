"""Writes the tables in docs/roofline.md from the model: python scripts/roofline_tables.py."""

from pathlib import Path

from keystone_robotics.tables import as_markdown
from keystone_study.roofline.devices import DEVICES
from keystone_study.roofline.models import MODELS
from keystone_study.roofline.table import largest_k_table, latency_table, operations_table, published_table

PAGE = Path(__file__).parents[1] / "docs" / "roofline.md"


def tables() -> dict[str, str]:
    """Every table of the page by the name in its markers."""
    devices = [
        [device.title, *(f"{value:g}" for value in (device.bandwidth, device.tflops, device.eager_us, device.graph_us))]
        for device in DEVICES.values()
    ]
    header = ["device", "memory, GB/s", "dense bf16, TFLOP/s", "assumed µs per eager operation", "per graph kernel"]
    pages = {
        "devices": as_markdown([header, *devices]).splitlines(),
        "pi05": latency_table(MODELS["pi05"], DEVICES["a6000"]),
        "published": published_table(),
        "operations": operations_table(),
        **{name: largest_k_table(DEVICES[name]) for name in ("a6000", "h100", "thor")},
    }
    return {name: "\n".join(lines) + "\n" for name, lines in pages.items()}


def page() -> str:
    """The page with regenerated tables."""
    text = PAGE.read_text()
    for name, table in tables().items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->\n"
        if (text.count(begin), text.count(end)) != (1, 1):
            raise SystemExit(f"{PAGE.name}: expected the markers of the table {name!r} once")
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page())
