"""`keystone demonstrations`: what LeRobot's own reader and environment find in the dataset."""

import json

import numpy as np
import pytest

from keystone_robotics.cli import main
from keystone_robotics.environments import find_benchmark
from keystone_robotics.errors import KeystoneError
from keystone_study.train.collect import collect
from keystone_study.train.dataset import write_dataset
from keystone_study.train.experts import find_expert


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demonstrations") / "pusht"
    words = ["--regime", "clean", "--demonstrations", "2", "--demos", str(folder.with_name("demos"))]
    assert main(["demonstrations", "--out", str(folder), *words]) == 0
    return folder


def test_lerobots_reader_finds_the_demonstrations(written):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = LeRobotDataset("keystone/pusht", root=written)
    found = collect(find_expert("pusht"), "pusht", "clean", 0, 2, written.with_name("demos") / "pusht").demonstrations
    assert (data.num_episodes, data.fps) == (2, 10)
    assert data.num_frames == sum(len(one.actions) for one in found)
    row = data[len(found[0].actions) + 3]
    assert (int(row["episode_index"]), int(row["frame_index"]), row["task"]) == (1, 3, "pusht")
    np.testing.assert_array_equal(row["action"], found[1].actions[3])
    np.testing.assert_array_equal(row["observation.state"], found[1].agent_pos[3])
    np.testing.assert_array_equal(row["observation.environment_state"], found[1].environment_state[3, 2:])


def test_lerobots_environment_gives_the_same_observations():
    ours, theirs = find_benchmark("pusht"), find_benchmark("lerobot:pusht?obs_type=environment_state_agent_pos")
    expert, lerobot = ours.make("pusht"), theirs.make("pusht/0")
    mine, seen = expert.reset(seed=5)[0], lerobot.reset(seed=5)[0]
    for target in ([100.0, 400.0], [256.0, 256.0], [300.0, 300.0]):
        np.testing.assert_array_equal(mine["agent_pos"], seen["agent_pos"].astype(np.float32))
        np.testing.assert_allclose(mine["environment_state"][2:], seen["environment_state"], rtol=1e-6)
        mine, seen = (env.step(np.array(target, np.float32))[0] for env in (expert, lerobot))
    expert.close()
    lerobot.close()


def test_a_folder_that_exists_is_kept(written):
    expert = find_expert("pusht")
    with pytest.raises(KeystoneError, match="choose the name of a new folder"):
        write_dataset([("pusht", expert.demonstrate("pusht", "clean", 0, 0))], expert, written)


def test_inspect_of_a_trained_policy_on_demonstrations_that_it_never_saw(tmp_path):
    """The shipped policy was trained on this expert's demonstrations of another seed."""
    task, policy = "coffee-pull-v3", "metaworld-mixed-diffusion"
    data, out = tmp_path / "coffee", tmp_path / "out"
    words = ["--env", "metaworld", "--tasks", task, "--regime", "mixed", "--demonstrations", "1", "--seed", "1"]
    assert main(["demonstrations", "--out", str(data), *words]) == 0
    arms = ["--arm", "first", "--arm", "first:steps=2", "--arm", "core-mean:k=16"]
    assert main(["inspect", policy, str(data), *arms, "--frames", "4", "--recordings", "0", "--out", str(out)]) == 0
    found = json.loads((out / "inspect.json").read_text())
    assert found["compared"] == 4
    distances = {one["arm"]: one["distance"] for one in found["arms"]}
    assert all(
        0.05 < distance < 1 for distance in distances.values()
    )  # 1 is a standard deviation of the demonstrations
    assert distances["core-mean:k=16"] != distances["first"] != distances["first:steps=2"]
