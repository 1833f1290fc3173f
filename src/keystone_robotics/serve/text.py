"""Text in arrays that strangers send."""

from __future__ import annotations

from typing import Any

import numpy as np

NO_TEXT = "an array of text that is not Unicode"


def is_text(data: bytes | bytearray, dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of an array are text, if its type says so: numpy raises a SystemError when such a string is read.

    >>> is_text(bytes([97, 0, 0, 0]), np.dtype("<U1")), is_text(bytes([255] * 4), np.dtype("<U1"))
    (True, False)
    """
    if dtype.kind != "U":
        return True
    code_points = np.frombuffer(data, np.dtype("u4").newbyteorder(dtype.byteorder))
    return bool(code_points.max(initial=0) <= 0x10FFFF)
