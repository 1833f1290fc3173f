"""From a stored run to ``alarm.json``: a score, its direction, and the limit that successful episodes rarely exceed."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import write_file
from keystone_robotics.monitor.conformal import WINDOW, band_limit, constant_limit
from keystone_robotics.monitor.run import RunScores
from keystone_robotics.monitor.scores import DEFAULT_SCORE, SCORES, find_score
from keystone_robotics.monitor.separation import Estimate, auroc

VERSION = 1  #: of the file
#: Failures and successes that a test of a score needs: with fewer, a bootstrap over episodes says nothing about others.
FEWEST_OUTCOMES = 5
WIDEST_WINDOW = 10_000  #: rounds; an alarm keeps the score of each
Direction = Literal["high", "low"]
Kind = Literal["constant", "band"]


@dataclass(frozen=True)
class Calibration:
    """What ``alarm.json`` holds.

    Attributes:
        score: its name.
        direction: "high": high values are alarming; "low": low ones are.
        kind: "constant": one limit; "band": one for each round, the last for all later ones.
        limit: of the smoothed score, in the score's own units.
        window: rounds that the score is averaged over.
        false_alarms: nominal rate: share of successful episodes in which it rings.
        n: successful episodes that it was calibrated on.
        failures: failed episodes that the direction was tested on.
        auroc: how well the score tells them from successes, with its 97.5 % interval (`find_direction`); None with fewer than
            `FEWEST_OUTCOMES` failures.
        policy: name of the policy.
        fingerprint: of the policy's files.
        weights: fingerprint of the policy's weights in memory; "" if unknown.
        env: benchmark.
        tasks: of the calibration.
        spec: text of the Spec that the rounds were drawn with.
        execute: steps executed between rounds; None if unknown.
        seed: of the run's initial states and noise.
        version: of the file.
    """

    score: str
    direction: Direction
    kind: Kind
    limit: tuple[float, ...]
    window: int
    false_alarms: float
    n: int
    failures: int = 0
    auroc: tuple[float, ...] | None = None
    policy: str = ""
    fingerprint: str = ""
    weights: str = ""
    env: str = ""
    tasks: tuple[str, ...] = ()
    spec: str = ""
    execute: int | None = None
    seed: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        _expect(self.direction in get_args(Direction), "direction", self.direction, '"high" or "low"')
        _expect(self.kind in get_args(Kind), "kind", self.kind, '"constant" or "band"')
        _expect(bool(self.limit) and all(_is_number(one) for one in self.limit), "limit", self.limit, "finite numbers")
        _expect(len(self.limit) == 1 or self.kind == "band", "limit", self.limit, "one number for a constant")
        right = _is_whole(self.window, 1) and self.window <= WIDEST_WINDOW
        _expect(right, "window", self.window, f"a whole number, 1 to {WIDEST_WINDOW}")
        for name in ("n", "failures"):
            _expect(_is_whole(getattr(self, name), 0), name, getattr(self, name), "a whole number, 0 or more")
        _expect(_is_whole(self.seed), "seed", self.seed, "a whole number")
        _expect(
            _is_number(self.false_alarms) and 0 < self.false_alarms < 1, "false_alarms", self.false_alarms, "a rate"
        )
        _expect(self.execute is None or _is_whole(self.execute, 1), "execute", self.execute, "a whole number or null")
        texts = ("policy", "fingerprint", "weights", "env", "spec")
        for name in texts:
            _expect(isinstance(getattr(self, name), str), name, getattr(self, name), "text")
        _expect(all(isinstance(one, str) for one in self.tasks), "tasks", self.tasks, "names")
        right = self.auroc is None or (len(self.auroc) == 3 and all(map(_is_number, self.auroc)))
        _expect(right, "auroc", self.auroc, "a number and its interval, or null")

    @property
    def sign(self) -> int:
        """By which values are multiplied so that higher is worse."""
        return 1 if self.direction == "high" else -1

    def limit_at(self, round: int) -> float:
        """The limit in a round of an episode, counted from 0."""
        return self.limit[min(round, len(self.limit) - 1)]

    def exceeds(self, value: float, round: int) -> bool:
        """Whether a smoothed score is alarming in a round; nan never is."""
        return self.sign * value > self.sign * self.limit_at(round)

    def save(self, path: Path) -> None:
        """Write ``alarm.json``."""
        write_file(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read ``alarm.json``.

        Raises:
            KeystoneError: in one line, if there is no such file or it is none of these.
        """
        try:
            content = json.loads(path.read_text(), parse_constant=_no_constant)
        except OSError as error:
            raise KeystoneError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise KeystoneError(f"{path} is not JSON ({' '.join(str(error).split())})") from None
        try:
            return cls.from_dict(content)
        except KeystoneError as error:
            raise KeystoneError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, content: Any) -> Calibration:
        """From what `save` writes.

        Raises:
            KeystoneError: about the first entry that is wrong.
        """
        if not isinstance(content, dict):
            raise KeystoneError("expected the entries of an alarm, made by `keystone monitor calibrate`")
        version = content.get("version")
        if version != VERSION:
            raise KeystoneError(f"version {version!r}: this version of KeyStone reads {VERSION}")
        known = {one.name for one in fields(cls)}
        needed = ("score", "direction", "kind", "limit", "window", "false_alarms", "n")
        missing = [name for name in needed if name not in content]
        if missing:
            raise KeystoneError(f"there is no {missing[0]!r} in it")
        values = {name: value for name, value in content.items() if name in known}
        for name in ("limit", "tasks", "auroc"):
            value = values.get(name, ())
            _expect(isinstance(value, (list, tuple)) or (name == "auroc" and value is None), name, value, "a list")
            if isinstance(value, list):
                values[name] = tuple(value)
        if not isinstance(values["score"], str):
            raise KeystoneError(f"score {values['score']!r}: expected a name")
        find_score(values["score"])
        return cls(**values)


def _expect(right: bool, name: str, value: Any, expected: str) -> None:
    if not right:
        text = repr(value)
        raise KeystoneError(f"{name} {text if len(text) < 60 else text[:57] + '…'}: expected {expected}")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_whole(value: Any, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class NoSeparation(KeystoneError):
    """The score does not tell this policy's failures from its successes."""


def find_direction(run: RunScores, score: str, window: int = WINDOW) -> tuple[Direction, Estimate]:
    """The alarming direction of a score, and how well it tells failures from successes in it. "high", unless low values
    separate and do so better.

    The better of two directions looks better than it is. So the interval has 97.5 % instead of 95 %: a score without any
    relation to failures passes in one of the two directions in 2.5 % of the runs at most, as in one direction that was fixed
    before.
    """
    high, low = (auroc(run.series(score, sign, window), level=0.975) for sign in (1, -1))
    return ("low", low) if low.separates and low.value > high.value else ("high", high)


def too_few(run: RunScores) -> str:
    """Why a run cannot say whether a score tells failures from successes; empty if it can."""
    failures, successes = len(run.failures()), len(run.successes())
    if failures < FEWEST_OUTCOMES:
        return f"too few failures ({failures}) to say"
    return f"too few successes ({successes}) to say" if successes < FEWEST_OUTCOMES else ""


def calibrate(
    run: RunScores,
    score: str = DEFAULT_SCORE,
    false_alarms: float = 0.05,
    window: int = WINDOW,
    kind: Kind = "constant",
    force: bool = False,
) -> Calibration:
    """An alarm from the successful episodes of a run.

    If the run has failures, the score is tested on them, in both directions.

    Args:
        run: one arm of it.
        score: one that the run was scored with.
        false_alarms: share of successful episodes in which it may ring.
        window: rounds that the score is averaged over.
        kind: one limit, or one for each round.
        force: also if the score does not separate.

    Raises:
        NoSeparation: if the run has failures and the interval of the score's AUROC contains 0.5.
        KeystoneError: if there are too few successes, with the number needed.
    """
    if run.episodes and score not in run.episodes[0].scores:
        find_score(score)
        raise KeystoneError(f"the rounds of {run.source} were not scored with {score}")
    failures = run.failures()
    if run.episodes and not any(math.isfinite(value) for one in run.episodes for value in one.scores[score]):
        raise KeystoneError(f"{score} says nothing in the rounds of {run.source}: {_why_silent(run, score)}")
    direction, separation = find_direction(run, score, window)
    tested = not math.isnan(separation.value) and len(failures) >= FEWEST_OUTCOMES
    if not tested:
        direction = "high"
    if tested and not separation.separates and not force:
        raise NoSeparation(_no_separation(run, score, separation, window))
    sign = 1 if direction == "high" else -1
    successes = [sign * one.scores[score] for one in run.successes()]
    make = constant_limit if kind == "constant" else band_limit
    limit = tuple(sign * value for value in make(successes, false_alarms, window))
    if not all(map(math.isfinite, limit)):
        raise KeystoneError(
            f"{score} says nothing in so many successes of {run.source} that it has no limit: {_why_silent(run, score)}"
        )
    return Calibration(
        score=score,
        direction=direction,
        kind=kind,
        limit=limit,
        window=window,
        false_alarms=false_alarms,
        n=len(successes),
        failures=len(failures),
        auroc=tuple(separation) if tested else None,
        policy=run.policy,
        fingerprint=run.fingerprint,
        weights=run.weights,
        env=run.env,
        tasks=run.tasks,
        spec=run.arm,
        execute=run.execute,
        seed=run.seed,
    )


def _why_silent(run: RunScores, score: str) -> str:
    """Why a score is nan."""
    needed = SCORES[score].min_candidates if score in SCORES else 1
    if 0 < run.k < needed:
        return f"its rounds have K = {run.k}, and the score needs {needed} candidates; choose another --arm"
    if score in SCORES and SCORES[score].uses_previous:
        return "the chunks of successive rounds plan no common step, because each is executed to its end; execute fewer steps"
    return "too few of the candidates are finite"


def _no_separation(run: RunScores, score: str, found: Estimate, window: int) -> str:
    others = {name: find_direction(run, name, window)[1] for name in run.episodes[0].scores if name != score}
    known = {name: one for name, one in others.items() if not math.isnan(one.value)}
    best = max(known, key=lambda name: known[name].low, default="")
    text = (
        f"{score} does not tell the {len(run.failures())} failures from the {len(run.successes())} successes of {run.source}: "
        f"AUROC {found}"
    )
    if best and known[best].separates:
        return f"{text}; --score {best} does ({known[best]}); --force writes the alarm anyway"
    nearest = f" (the nearest is {best}, {known[best]})" if best else ""
    return f"{text}, and no other score does{nearest}; no alarm is given, --force writes it anyway"
