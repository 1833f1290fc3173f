"""`lerobot-eval` as a user types it, with KeyStone by each of the three routes; and `keystone eval` rolls out the same."""

import json
import re

import eval_process
import numpy as np
import pytest

from keystone_robotics.cli import main
from keystone_robotics.records import Store

OPTIONS = {"k": "16", "rule": "medoid", "temperature": "0.8", "seed": "1"}


@pytest.fixture(scope="module")
def flagged(evaluate, checkpoint):
    """The console script with the flag, in an environment that says otherwise."""
    options = [f"--policy.keystone.{name}={value}" for name, value in OPTIONS.items()]
    path = f"--policy.path={checkpoint('diffusion')}"
    return evaluate(
        path, *options, from_scratch=True, KEYSTONE_K="4", KEYSTONE_RULE="first", KEYSTONE_RERUN="rounds.rrd"
    )


def test_flag_draws_k_candidates_and_wins_over_the_environment(flagged):
    assert flagged.code == 0, flagged.output
    assert "KeyStone on: K=16, rule medoid, adapter diffusion" in flagged.output
    assert "KeyStone self-check passed: 16 candidates" in flagged.output
    assert flagged.rewards
    assert len(flagged.rounds) > 1
    assert {(round["k"], round["rule"]) for round in flagged.rounds} == {(16, "medoid")}


def test_the_environment_switches_rerun_on(flagged):
    columns = pytest.importorskip("view.recordings").columns
    consensus, _ = np.transpose(columns(flagged.directory / "rounds.rrd", "keystone")["Scalars:scalars"])
    np.testing.assert_allclose(consensus, [round["consensus"][0] for round in flagged.rounds])


def test_wrapper_type_chooses_the_same(flagged, evaluate, checkpoint):
    options = [f"--policy.{name}={value}" for name, value in OPTIONS.items()]
    wrapped = evaluate("--policy.type=keystone", f"--policy.base_path={checkpoint('diffusion')}", *options)
    assert wrapped.code == 0, wrapped.output
    assert "KeyStone on: K=16, rule medoid, adapter diffusion" in wrapped.output
    assert [round["index"] for round in wrapped.rounds] == [round["index"] for round in flagged.rounds]
    assert wrapped.rewards == flagged.rewards


def test_one_candidate_is_the_policy_itself(flagged, evaluate, checkpoint):
    path = f"--policy.path={checkpoint('diffusion')}"
    plain, single = evaluate(path), evaluate(path, "--policy.keystone.k=1")
    assert plain.code == single.code == 0, single.output
    assert "KeyStone on" not in plain.output
    assert "KeyStone on: K=1," in single.output
    assert single.rewards == plain.rewards != flagged.rewards
    assert not single.rounds


def test_environment_variables(evaluate, checkpoint):
    done = evaluate(
        f"--policy.path={checkpoint('diffusion')}",
        KEYSTONE_K="8", KEYSTONE_RULE="kde", KEYSTONE_PARAMS="whole=true",
    )  # fmt: skip
    assert done.code == 0, done.output
    assert "KeyStone on: K=8, rule kde, adapter diffusion" in done.output
    assert {(round["k"], round["rule"]) for round in done.rounds} == {(8, "kde")}


def test_policy_that_cannot_choose_is_an_error(evaluate, checkpoint):
    done = evaluate(f"--policy.path={checkpoint('act')}", "--policy.keystone.k=16")
    assert done.code != 0
    assert "keystone_robotics.errors.KeystoneError" in done.output
    assert not (done.directory / "eval_info.json").exists()


def test_unknown_rule_is_an_error_that_names_the_nearest(evaluate, checkpoint):
    done = evaluate(f"--policy.path={checkpoint('diffusion')}", "--policy.keystone.rule=mediod")
    assert done.code != 0
    assert "unknown rule 'mediod': did you mean 'medoid'?" in done.output
    assert not (done.directory / "eval_info.json").exists()


@pytest.mark.parametrize(
    ("command", "policy", "flag"),
    [("lerobot-eval", "smolvla", "--policy.keystone.k "), ("lerobot-train", "keystone", "--policy.base_path ")],
)
def test_help_of_the_commands(tmp_path, variables, command, policy, flag):
    assert eval_process.run(command, [f"--policy.type={policy}", "--help"], tmp_path, variables) == 0
    output = (tmp_path / "output.txt").read_text()
    assert flag in output
    assert "Could not import third-party plugin" not in output


# `--policy.keystone.seed` and `keystone eval --seed` roll out the same episodes. In this file, since LeRobot is imported
# for both once more, outside of this process.

ARMS = ["keystone:k=4", "core-mean:k=4,steps=2,temperature=0.8"]
EPISODES, BATCH = 4, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory, checkpoint):
    out = tmp_path_factory.mktemp("run") / "run"
    words = [
        "--env",
        "lerobot:pusht?episode_length=20",
        "--episodes",
        str(EPISODES),
        "--shard",
        str(BATCH),
        "--seed",
        "1",
    ]
    arms = [word for arm in ARMS for word in ("--arm", arm)]
    options = ["--keep-rounds", "--no-latency", "--workers", "0", "--out", str(out)]
    assert main(["eval", "--policy", str(checkpoint("diffusion")), *words, *arms, *options]) == 0
    return out


@pytest.mark.parametrize("arm", ARMS)
def test_every_round_of_every_episode_is_the_same(arm, run, evaluate, checkpoint):
    done = evaluate(
        f"--policy.path={checkpoint('diffusion')}", f"--policy.keystone.spec={arm}", "--policy.keystone.seed=1",
        f"--eval.n_episodes={EPISODES}", f"--eval.batch_size={BATCH}", "--seed=100000",
    )  # fmt: skip
    assert done.code == 0, done.output
    per_rollout = len(done.rounds) // (EPISODES // BATCH)
    with Store(run) as store:
        for episode in range(EPISODES):
            begin, row = per_rollout * (episode // BATCH), episode % BATCH
            theirs = [one["median_distance"][row] for one in done.rounds[begin : begin + per_rollout]]
            ours = [one.median_distance for one in store.rounds((arm, "pusht/0", 0, episode))]
            assert len(ours) == 3
            assert theirs == ours
    successes = json.loads((done.directory / "eval_info.json").read_text())["per_task"][0]["metrics"]["successes"]
    assert successes == [False] * EPISODES
    if arm == ARMS[0]:
        page = done.directory / "page.html"
        assert main(["report", str(run), str(done.directory), "--paired", "trust", "--out", str(page)]) == 0
        data = json.loads(re.search('id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
        *_, theirs = data["arms"]
        assert (theirs["tool"], theirs["episodes"], theirs["rate"]) == ("lerobot", EPISODES, 0)
