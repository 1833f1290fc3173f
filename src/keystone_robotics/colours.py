"""The colours of all pictures: figures, pages and recordings."""

#: Okabe and Ito's colour-blind safe palette. The winning cluster has the first colour.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
#: The seventh of them, for what is executed: readable on the dark background of a viewer.
EXECUTED = "#F0E442"


def rgba(colour: str) -> int:
    """``#RRGGBB`` as the number 0xRRGGBBFF.

    >>> hex(rgba("#0072B2"))
    '0x72b2ff'
    """
    return int(colour.removeprefix("#"), 16) << 8 | 0xFF
