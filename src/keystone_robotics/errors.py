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


def nearest_name(name: object, known: Iterable[str]) -> str:
    """Suffix of an error message about an unknown name: the closest known name, then all of them.

    >>> nearest_name("mediod", ["medoid", "mean"])
    "did you mean 'medoid'? Known: mean, medoid"
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}Known: {', '.join(names)}"
