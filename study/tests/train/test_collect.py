"""Collecting on the real Meta-World: reproducible, resumable, apart from what evaluation uses."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from keystone_robotics.environments import BENCHMARKS
from keystone_robotics.errors import KeystoneError
from keystone_study.train.collect import FLUSH, collect
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.expert import FIRST_SEED, Expert, attempt_random
from keystone_study.train.experts import find_expert

METAWORLD = find_expert("metaworld")


def same(one: Demonstration, other: Demonstration) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class Scripted(Expert):
    """Succeeds in the attempts it is told to, and remembers which it made."""

    benchmark = BENCHMARKS["metaworld"]
    regimes = ("clean",)
    packages = ("numpy",)
    period: ClassVar[int] = 3

    def __init__(self, stop_at: int | None = None, words: str = "scripted") -> None:
        self.made: list[int] = []
        self.stop_at, self.words = stop_at, words

    def describe(self, regime: str) -> str:
        return self.words

    def demonstrate(self, task: str, regime: str, seed: int, index: int) -> Demonstration:
        if index == self.stop_at:
            raise KeyboardInterrupt
        self.made.append(index)
        length = 2 + index % 4
        return Demonstration(
            np.full((length, 2), index, np.float32),
            np.full((length, 3), index + 0.5, np.float32),
            np.full((length, 1), -index, np.float32),
            index % self.period == 0,
        )


def test_a_demonstration_depends_on_nothing_but_its_name():
    first = METAWORLD.demonstrate("reach-v3", "mixed", 0, 1)
    METAWORLD.demonstrate("push-v3", "noisy", 0, 0)
    METAWORLD.demonstrate("reach-v3", "mixed", 0, 2)
    assert same(first, METAWORLD.demonstrate("reach-v3", "mixed", 0, 1))
    for other in (("reach-v3", "mixed", 0, 2), ("reach-v3", "mixed", 1, 1), ("reach-v3", "clean", 0, 1)):
        assert not same(first, METAWORLD.demonstrate(*other))


@pytest.mark.parametrize("task", ["push-v3", "hammer-v3"])
def test_the_clean_expert_succeeds_and_stops_a_little_later(task: str):
    made = [METAWORLD.demonstrate(task, "clean", 0, index) for index in range(3)]
    assert sum(one.success for one in made) >= 2
    for one in made:
        length = len(one.actions)
        assert one.actions.shape == (length, 4)
        assert one.agent_pos.shape == (length, 4)
        assert one.environment_state.shape == (length, 89)
        assert {array.dtype for array in one[:3]} == {np.dtype(np.float32)}
        assert np.abs(one.actions).max() <= 1
        assert length <= METAWORLD.max_steps


def test_recorded_actions_lead_to_the_recorded_states_and_to_success():
    index, one = next(
        (index, made) for index in range(9) if (made := METAWORLD.demonstrate("push-v3", "clean", 5, index)).success
    )
    env = METAWORLD.benchmark.make("push-v3")
    observation, _ = env.reset(seed=attempt_random("push-v3", "clean", 5, index)[1])
    successes = []
    for state, action in zip(one.environment_state, one.actions, strict=True):
        np.testing.assert_allclose(observation["environment_state"], state, atol=1e-6)
        observation, _, success, _, _ = env.step(action)
        successes.append(success)
    assert successes.index(True) == len(successes) - 1 - METAWORLD.tail


def test_initial_states_are_not_those_of_evaluation():
    seeds = [attempt_random(task, "mixed", 0, i)[1] for task in METAWORLD.default_tasks for i in range(300)]
    assert min(seeds) >= FIRST_SEED == 2**30
    assert max(seeds) < 2**31
    assert len(set(seeds)) == len(seeds)


def test_pusht_demonstrates_reproducibly():
    expert = find_expert("pusht")
    one = expert.demonstrate("pusht", "mixed", 0, 0)
    assert one.agent_pos.shape[1] == one.actions.shape[1] == 2
    assert same(one, expert.demonstrate("pusht", "mixed", 0, 0))


def test_only_successes_are_kept_and_failures_counted(tmp_path: Path):
    found = collect(Scripted(), "reach-v3", "clean", 0, 4, tmp_path)
    assert found.attempts == [0, 3, 6, 9]
    assert found.tried == 10
    assert found.success_rate == pytest.approx(0.4)
    assert [int(one.agent_pos[0, 0]) for one in found.demonstrations] == found.attempts


def test_interrupted_collecting_goes_on_where_it_stopped(tmp_path: Path):
    count = 2 * FLUSH + 1
    whole = collect(Scripted(), "reach-v3", "clean", 0, count, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        collect(Scripted(stop_at=3 * FLUSH + 4), "reach-v3", "clean", 0, count, tmp_path / "parts")
    again = Scripted()
    parts = collect(again, "reach-v3", "clean", 0, count, tmp_path / "parts")
    assert min(again.made) == 3 * (FLUSH - 1) + 1  # nothing that was stored is made again
    assert parts.attempts == whole.attempts
    assert parts.tried == whole.tried
    assert all(same(a, b) for a, b in zip(parts.demonstrations, whole.demonstrations, strict=True))
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("whole", "parts")]
    assert files[0] == files[1] == ["reach-v3-clean-seed0.npz"]


def test_fewer_than_stored_are_the_first_ones_and_more_continue(tmp_path: Path):
    collect(Scripted(), "reach-v3", "clean", 0, 6, tmp_path)
    expert = Scripted()
    fewer = collect(expert, "reach-v3", "clean", 0, 3, tmp_path)
    assert expert.made == []
    assert (fewer.attempts, fewer.tried) == ([0, 3, 6], 7)
    assert collect(expert, "reach-v3", "clean", 0, 7, tmp_path).attempts[-1] == 18
    assert expert.made == [16, 17, 18]


def test_demonstrations_made_in_another_way_are_refused(tmp_path: Path):
    collect(Scripted(), "reach-v3", "clean", 0, 1, tmp_path)
    with pytest.raises(KeystoneError, match="--demos"):
        collect(Scripted(words="otherwise"), "reach-v3", "clean", 0, 1, tmp_path)


def test_a_broken_file_is_named(tmp_path: Path):
    (tmp_path / "reach-v3-clean-seed0.npz").write_bytes(b"PK not really")
    with pytest.raises(KeystoneError, match=r"reach-v3-clean-seed0\.npz"):
        collect(Scripted(), "reach-v3", "clean", 0, 1, tmp_path)


def test_an_expert_that_hardly_succeeds_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Scripted, "period", 1000)
    with pytest.raises(KeystoneError, match="too rarely"):
        collect(Scripted(), "reach-v3", "clean", 0, 3, tmp_path)
