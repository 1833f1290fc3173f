"""Public exceptions, and a helper for messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KeystoneError(Exception):
    """An error of a policy, a checkpoint or its candidates; wrong arguments raise ValueError and TypeError.

    >>> issubclass(NoValidCandidate, KeystoneError)
    True
    """


class NoValidCandidate(KeystoneError, ValueError):
    """Every candidate of a round holds a NaN, an infinity or the like, so there is nothing safe to execute.

    >>> import numpy as np, keystone_robotics as keystone
    >>> try:
    ...     keystone.select(np.full((4, 8, 7), np.nan))
    ... except keystone.NoValidCandidate as error:
    ...     print(error)
    none of the 4 candidates is usable: each holds a NaN or an infinity; nothing was selected

    Attributes:
        rows: of the batch that have none, where that is known.
    """

    rows: tuple[int, ...] = ()


class TooManyCandidates(KeystoneError, MemoryError):
    """K candidates do not fit into the memory of the host.

    >>> issubclass(TooManyCandidates, MemoryError)
    True
    """


class StepsRefused(KeystoneError):
    """The policy cannot denoise in that many steps; the message says what is possible.

    >>> issubclass(StepsRefused, KeystoneError)
    True
    """


def shorten(text: str, most: int = 600) -> str:
    """The beginning and the end of a text that is too long for a line.

    >>> shorten("0123456789", 6)
    '012…789'
    """
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2) :]}"


def nearest_name(name: object, known: Iterable[str]) -> str:
    """Suffix of an error message about an unknown name: the closest known name, then all of them.

    >>> nearest_name("mediod", ["medoid", "mean"])
    "did you mean 'medoid'? Known: mean, medoid"
    >>> nearest_name("reach-v3", ["shelf-place-v3"])
    'known are shelf-place-v3'
    """
    names = sorted(known)
    lower = {one.lower(): one for one in names}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)
    return f"did you mean {lower[close[0]]!r}? Known: {', '.join(names)}" if close else f"known are {', '.join(names)}"
