"""What an evaluation is: its configuration, and the fixed groups of episodes that it is made of."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.select.rules import RULES
from keystone_robotics.select.rules.checks import whole
from keystone_robotics.spec import Spec

#: The policy as it is; the control that costs nothing; the paper's rule; the one that did best in docs/study.md.
DEFAULT_ARMS = tuple(
    map(Spec.parse, ("first", "first:steps=2", "first:temperature=0.6", "keystone:k=16", "core-mean:k=16,steps=2"))
)
#: Demonstrations begin at states with seeds from here on; those of evaluations lie below.
DEMONSTRATIONS = 2**30
MOST_EPISODES = 100_000  #: of a task; the initial states of the next seed begin there


@dataclass(frozen=True)
class Shard:
    """Episodes of one arm, repeat and task that are rolled out together as one batch. Because it is fixed, results do not
    depend on who rolls it out, how many workers there are, or what was interrupted.

    Attributes:
        arm: how candidates are drawn and one is selected.
        task: of all its episodes.
        repeat: which of the repeats; each has noise of its own.
        first: number of the first episode.
        count: number of episodes.
    """

    arm: Spec
    task: str
    repeat: int
    first: int
    count: int

    @property
    def episodes(self) -> range:
        return range(self.first, self.first + self.count)

    def __str__(self) -> str:
        return f"{self.arm} {self.task} repeat {self.repeat} episodes {self.first}-{self.first + self.count - 1}"


@dataclass(frozen=True)
class EvaluationConfig:
    """Everything that decides the outcome of an evaluation.

    Attributes:
        policy: name of a shipped policy, folder, LeRobot's name on the hub, or ``package.module:function``.
        env: name of a benchmark, see `keystone_robotics.environments.find_benchmark`.
        tasks: of the benchmark; every arm does all of them.
        episodes: initial states per task, the same for all arms and repeats.
        first_episode: number of the first of them; initial states are numbered from 0 for each seed.
        repeats: of every episode, with fresh policy noise.
        arms: what is compared; the first is what the others are compared with.
        seed: of initial states and policy noise.
        shard: episodes that are rolled out together.
        max_steps: after which an episode has failed; None is the benchmark's number.
        execute: steps of a chunk that are executed before the next round; None is the policy's number.
        device: of the policy; None is its checkpoint's.
        keep_rounds: store the candidates of every round, for reports.
        allow_untrained_tasks: also tasks that the policy was not trained on.
        latency: time one round at batch size 1 for the first observation of every episode.
        trust_remote_code: run code that a LeRobot checkpoint names but LeRobot did not install.
        fingerprint: of the policy's files, which workers compare with what they find; None compares nothing.
    """

    policy: str
    env: str
    tasks: tuple[str, ...]
    episodes: int = 50
    repeats: int = 1
    arms: tuple[Spec, ...] = DEFAULT_ARMS
    seed: int = 0
    shard: int = 25
    max_steps: int | None = None
    execute: int | None = None
    device: str | None = None
    keep_rounds: bool = False
    allow_untrained_tasks: bool = False
    latency: bool = True
    trust_remote_code: bool = False
    fingerprint: str | None = None
    first_episode: int = 0

    def __post_init__(self) -> None:
        for name in ("episodes", "repeats", "shard"):
            whole(name, getattr(self, name))
        for name in ("max_steps", "execute"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        whole("seed", self.seed, least=0)
        whole("first_episode", self.first_episode, least=0)
        if not self.arms:
            raise KeystoneError("no arm was given: --arm first --arm keystone:k=16, say")
        for arm in self.arms:
            _check_arm(arm)
        for kind, names in (("arm", [str(arm) for arm in self.arms]), ("task", list(self.tasks))):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise KeystoneError(f"{kind} {min(twice)!r} was given twice")
        if not self.tasks:
            raise KeystoneError("no task was given")
        if self.first_episode + self.episodes > MOST_EPISODES or self.seed > 10_000:
            raise KeystoneError("expected at most 100,000 episodes per task and a seed of at most 10,000")

    def shards(self) -> list[Shard]:
        """All of them: arms side by side, so that their rates can be watched; one task after the other, so that its
        environments are made once.
        """
        end = self.first_episode + self.episodes
        return [
            Shard(arm, task, repeat, first, min(self.shard, end - first))
            for task in self.tasks
            for repeat in range(self.repeats)
            for first in range(self.first_episode, end, self.shard)
            for arm in self.arms
        ]

    def initial_seed(self, episode: int) -> int:
        """For ``env.reset``: the same for all arms and repeats, and never that of a demonstration."""
        return (self.seed * MOST_EPISODES + episode) % DEMONSTRATIONS

    def noise_seed(self, repeat: int, task: str, episode: int, round: int) -> int:
        """Of the policy's noise: the same for all arms, so that the noise of K = 1 is candidate 0 of K's."""
        return noise_seed(self.seed, repeat, task, episode, round)

    def asks_for(self, task: str, repeat: int, episode: int) -> bool:
        """Whether an episode belongs to it; a store may hold more, of earlier calls."""
        known = task in self.tasks and repeat < self.repeats
        return known and 0 <= episode - self.first_episode < self.episodes

    def identity(self) -> dict[str, Any]:
        """What must not change when a run is resumed. Arms, tasks, episodes and repeats may be added."""
        names = ("env", "seed", "shard", "max_steps", "execute", "device", "keep_rounds")
        return {name: getattr(self, name) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in a YAML file."""
        values = {**asdict(self), "tasks": list(self.tasks), "arms": [str(arm) for arm in self.arms]}
        return {name: values[name] for name in _GIVEN}


def noise_seed(seed: int, repeat: int, task: str, episode: int, round: int) -> int:
    """The seed of the noise of one round of an episode, in an evaluation with this seed."""
    from keystone_robotics.sample.noise import derive_seed  # imports torch: wrong options are said before

    return derive_seed(seed, repeat, zlib.crc32(task.encode()), episode, round)


#: What users say; the fingerprint is found out.
_GIVEN = [name for name in EvaluationConfig.__dataclass_fields__ if name != "fingerprint"]


def config_from(given: Mapping[str, Any], default_tasks: Sequence[str] = ()) -> EvaluationConfig:
    """A configuration from plain values, checked; None means not given.

    >>> arms = ["first", {"rule": "medoid", "k": 4}]
    >>> config_from({"policy": "p", "env": "pusht", "tasks": ["pusht"], "arms": arms}).arms[1].k
    4
    """
    for name in given:
        if name not in _GIVEN:
            raise KeystoneError(f"unknown option {name!r}: {nearest_name(name, _GIVEN)}")
    values = {name: value for name, value in given.items() if value is not None}
    for name in ("policy", "env"):
        if not isinstance(values.get(name), str):
            given_instead = f"{name}={values[name]!r}" if name in values else f"no {name} was given"
            raise KeystoneError(f"{given_instead}: expected a name (--{name} NAME)")
    values["tasks"] = tuple(_listed("tasks", values.get("tasks") or default_tasks))
    for task in values["tasks"]:
        if not isinstance(task, str):
            raise KeystoneError(f"task {task!r}: expected a name")
    if "arms" in values:
        values["arms"] = tuple(_arm(arm) for arm in _listed("arms", values["arms"]))
    if not isinstance(values.get("device", ""), str):
        raise KeystoneError(f"device={values['device']!r}: expected a name")
    for name in ("keep_rounds", "allow_untrained_tasks", "latency", "trust_remote_code"):
        if not isinstance(values.get(name, False), bool):
            raise KeystoneError(f"{name}={values[name]!r}: expected true or false")
    try:
        return EvaluationConfig(**values)
    except (TypeError, ValueError) as error:
        raise KeystoneError(str(error)) from None


def _listed(name: str, value: Any) -> Sequence[Any]:
    """One thing may be given instead of a list of one."""
    if isinstance(value, (str, Mapping)):
        return [value]
    if not isinstance(value, (list, tuple)):
        raise KeystoneError(f"{name}={value!r}: expected a list")
    return value


def _arm(value: Any) -> Spec:
    if isinstance(value, Mapping):
        try:
            return Spec.from_mapping(value)
        except (TypeError, ValueError) as error:
            raise KeystoneError(f"arm {dict(value)}: {error}") from None
    if not isinstance(value, str):
        raise KeystoneError(f"arm {value!r}: expected text (keystone:k=16) or a mapping ({{rule: keystone, k: 16}})")
    return Spec.parse(value)


def _check_arm(arm: Spec) -> None:
    """Refuse what makes no sense in an evaluation, whose results must not depend on who rolls out a shard."""
    if arm.seed is not None:
        raise KeystoneError(
            f"arm {arm}: seed is the evaluation's (--seed), which gives all arms the same noise: leave it out"
        )
    if arm.k == "auto":
        raise KeystoneError(
            f"arm {arm}: K would depend on the worker: `keystone profile` finds the number to give instead"
        )
    if not isinstance(arm.rule, str):
        raise KeystoneError(f"arm {arm}: a rule without a name cannot be sent to workers: add it to keystone.RULES")


def read_yaml(path: Path) -> dict[str, Any]:
    """The options in a YAML file."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        an_arm = str(path).partition(":")[0] in RULES
        hint = f": every arm takes an --arm of its own, as in --arm {path}" if an_arm else ""
        raise KeystoneError(f"there is no file {path}{hint}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise KeystoneError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, dict):
        raise KeystoneError(f"{path}: expected options such as `policy: …`, one a line")
    if content.get("trust_remote_code"):  # the file may be of unknown origin
        raise KeystoneError(
            f"{path}: trust_remote_code is not for a file: give --trust-remote-code if you trust the policy"
        )
    return content
