"""The style of all figures. matplotlib is imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_robotics.colours import PALETTE
from keystone_robotics.errors import KeystoneError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#222222"
FAINT = "#C8C8C8"
QUIET = "#767676"  # the lightest grey that is still easy to read on white

__all__ = ["FAINT", "INK", "PALETTE", "QUIET", "PlottingUnavailable", "new_figure", "save"]

_SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # ships with matplotlib: the same figure on every machine
    "font.size": 10.0,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.1,
    "svg.hashsalt": "keystone",  # makes SVG files reproducible
}


class PlottingUnavailable(KeystoneError, ImportError):
    """matplotlib is not installed.

    >>> raise PlottingUnavailable
    Traceback (most recent call last):
    keystone_robotics.report.style.PlottingUnavailable: figures need matplotlib: pip install "keystone-robotics[plot]"
    """

    def __init__(self) -> None:
        super().__init__('figures need matplotlib: pip install "keystone-robotics[plot]"')


def new_figure(width: float, height: float, columns: int = 1, rows: int = 1, **grid: Any) -> tuple[Figure, list[Axes]]:
    """A white figure with rows of bare axes, row by row, sizes in inches; keywords go to matplotlib's ``GridSpec``.

    It belongs to no window and no global state, so it can be drawn on a server and from any thread.

    >>> figure, axes = new_figure(8, 4, columns=2)
    >>> len(axes)
    2
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise PlottingUnavailable from None
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid).flat)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(FAINT)
        ax.tick_params(color=FAINT, labelcolor=QUIET, labelsize=9)
    return figure, axes


def save(figure: Figure, folder: Path, name: str, dpi: int = 140) -> list[Path]:
    """Write ``name.png`` and ``name.svg`` into a folder; returns their paths. The same figure gives the same bytes."""
    import matplotlib

    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(paths[0], dpi=dpi, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
