"""The configuration of an evaluation from YAML and from flags, and the shards it comes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import DEFAULT_ARMS, DEMONSTRATIONS, EvaluationConfig, config_from, read_yaml
from keystone_robotics.spec import Spec

GIVEN = {"policy": "p", "env": "metaworld", "tasks": ["reach-v3"]}


def test_a_file_says_what_flags_say(tmp_path):
    path = tmp_path / "eval.yaml"
    path.write_text(
        "policy: p\nenv: metaworld\ntasks: [reach-v3, push-v3]\nepisodes: 10\nkeep_rounds: true\n"
        "arms:\n  - first\n  - {rule: keystone, k: 4, temperature: 0.6}\n"
    )
    settings = config_from(read_yaml(path))
    assert settings.arms == (Spec.parse("first"), Spec.parse("keystone:k=4,temperature=0.6"))
    assert (settings.tasks, settings.episodes, settings.keep_rounds) == (("reach-v3", "push-v3"), 10, True)
    assert config_from(settings.as_dict()) == settings


def test_one_task_and_one_arm_need_no_list():
    settings = config_from({**GIVEN, "tasks": "reach-v3", "arms": "medoid:k=4"})
    assert (settings.tasks, settings.arms) == (("reach-v3",), (Spec.parse("medoid:k=4"),))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"episode": 3}, "unknown option 'episode': did you mean 'episodes'"),
        ({1: 3}, "unknown option 1"),
        ({"policy": None}, "no policy was given"),
        ({"policy": 3}, "policy=3"),
        ({"env": ["metaworld"]}, "env=['metaworld']"),
        ({"tasks": 3}, "tasks=3: expected a list"),
        ({"tasks": [3]}, "task 3: expected a name"),
        ({"tasks": []}, "no task"),
        ({"tasks": ["reach-v3", "reach-v3"]}, "task 'reach-v3' was given twice"),
        ({"arms": 3}, "arms=3: expected a list"),
        ({"arms": [3]}, "arm 3: expected text"),
        ({"arms": []}, "no arm"),
        ({"arms": [{"rule": "medoid", "seed": 3}]}, "arm medoid:k=16,seed=3: seed is the evaluation's"),
        ({"arms": ["medoid:k=auto"]}, "arm medoid:k=auto: K would depend on the worker"),
        ({"arms": [{"rule": "medoid", "k": "four"}]}, "k='four'"),
        ({"arms": [{"rule": "medoid", 3: 4}]}, "no option 3"),
        ({"arms": ["first", "first:k=1"]}, "arm 'first' was given twice"),
        ({"arms": ["first:temperature=2", "first:temperature=2.0"]}, "given twice"),
        ({"arms": ["mediod"]}, "did you mean 'medoid'"),
        ({"episodes": 0}, "episodes=0"),
        ({"episodes": "10"}, "episodes='10'"),
        ({"episodes": 10.5}, "episodes=10.5"),
        ({"repeats": True}, "repeats=True"),
        ({"max_steps": -1}, "max_steps=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"episodes": 200_000}, "at most 100,000"),
        ({"keep_rounds": "yes"}, "keep_rounds='yes'"),
        ({"device": 0}, "device=0"),
        ({"allow_untrained_tasks": "yes"}, "allow_untrained_tasks='yes'"),
        ({"latency": 0}, "latency=0"),
        ({"fingerprint": "abc"}, "unknown option 'fingerprint'"),
    ],
)
def test_what_is_wrong_is_said(given, says):
    with pytest.raises(KeystoneError) as error:
        config_from({**GIVEN, **given})
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no file"),
        (b"a: [", "cannot be read as YAML"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"- a", "expected"),
    ],
)
def test_files_that_are_none(tmp_path, content, says):
    path = tmp_path / "eval.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeystoneError, match=says):
        read_yaml(path)


@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 12), st.integers(0, 50))
def test_shards_hold_every_episode_once(episodes, repeats, shard, first):
    settings = EvaluationConfig("p", "metaworld", ("a", "b"), episodes, repeats, shard=shard, first_episode=first)
    keys = [(part.arm, part.task, part.repeat, one) for part in settings.shards() for one in part.episodes]
    assert len(keys) == len(set(keys)) == len(DEFAULT_ARMS) * 2 * repeats * episodes
    assert {episode for *_, episode in keys} == set(range(first, first + episodes))
    assert all(settings.asks_for(task, repeat, episode) for _, task, repeat, episode in keys)
    assert not settings.asks_for("a", 0, first - 1)
    assert not settings.asks_for("a", 0, first + episodes)
    assert all((part.first - first) % shard == 0 and part.count <= shard for part in settings.shards())


def test_seeds_of_noise_differ_and_initial_states_are_no_demonstrations():
    settings = EvaluationConfig("p", "metaworld", ("a",), seed=10_000)
    seeds = {
        settings.noise_seed(repeat, task, episode, round)
        for repeat in range(3) for task in ("a", "b") for episode in range(20) for round in range(20)
    }  # fmt: skip
    assert len(seeds) == 3 * 2 * 20 * 20
    assert 0 <= settings.initial_seed(99_999) < DEMONSTRATIONS
    assert settings.initial_seed(0) != EvaluationConfig("p", "metaworld", ("a",), seed=9_999).initial_seed(0)
