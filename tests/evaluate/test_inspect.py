"""`keystone inspect`: a policy on frames that LeRobot's own writer stored."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from keystone_robotics.cli import main
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.dataset import open_dataset
from keystone_robotics.evaluate.demonstrations import choose_frames, inspect_frames
from keystone_robotics.policies import load_agent
from keystone_robotics.report.inspection import NOT_SUCCESS, page, record_episodes, summarise
from keystone_robotics.spec import Spec
from keystone_robotics.view.recording import Recording
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint

FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "observation.image": {"dtype": "image", "shape": (96, 96, 3), "names": ["height", "width", "channels"]},
    "action": {"dtype": "float32", "shape": (2,), "names": ["<x>", "y"]},
}


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Two episodes of PushT with images, pushed at random."""
    from keystone_robotics.environments import find_benchmark

    folder = tmp_path_factory.mktemp("data") / "pusht"
    dataset = LeRobotDataset.create("me/pusht", 10, FEATURES, root=folder, use_videos=False)
    env = find_benchmark("pusht-pixels").make("pusht")
    random = np.random.default_rng(0)
    for episode in range(2):
        observation, _ = env.reset(seed=episode)
        for _ in range(12):
            action = random.uniform(100, 400, 2).astype(np.float32)
            dataset.add_frame(
                {
                    "observation.state": observation["agent_pos"],
                    "observation.image": observation["pixels"],
                    "action": action,
                    "task": "push the T",
                }
            )
            observation, *_ = env.step(action)
        dataset.save_episode()
    dataset.finalize()
    env.close()
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    save_checkpoint(build("diffusion", **env_features("pusht"), n_action_steps=4), folder, "pusht")
    return folder


@pytest.fixture(scope="module")
def frames(demonstrations, checkpoint):
    arms = [Spec.parse(arm) for arm in ("first", "first:steps=2", "medoid:k=4", "core-mean:k=8")]
    data = open_dataset(str(demonstrations))
    agent = load_agent(str(checkpoint))
    indices = choose_frames(data, 6)
    return list(inspect_frames(agent, data, arms, indices)), data, agent, indices


def test_distances_are_those_of_the_actions_in_the_dataset(frames):
    found, data, agent, indices = frames
    deviation = np.asarray(data.meta.stats["action"]["std"])
    for one, index in zip(found, indices, strict=True):
        assert (one.episode, one.frame) == (int(data[index]["episode_index"]), int(data[index]["frame_index"]))
        left = 12 - one.frame
        assert len(one.demonstrated) == min(left, agent.execute)
        steps = min(left, agent.execute)
        first = agent.in_env_units(one.candidates, {})[0, :steps]  # candidate 0 is the sample of K = 1
        actions = torch.stack([data[index + step]["action"] for step in range(steps)]).numpy()
        expected = np.sqrt((((first - actions) / deviation) ** 2).mean())
        assert one.distances["first"] == pytest.approx(expected, rel=1e-3)
        assert one.distances["first:steps=2"] != one.distances["first"]


def test_the_summary_names_the_frames_with_the_largest_disagreement(frames):
    found, *_ = frames
    summary = summarise(found, ["<x>", "y"], {"checkpoint": "c", "dataset": "d", "main": "core-mean:k=8"})
    assert summary["worst"][0]["dispersion"] == max(one.dispersion for one in found)
    assert [one["arm"] for one in summary["arms"]] == ["first", "first:steps=2", "medoid:k=4", "core-mean:k=8"]
    known = [one for one in found if np.isfinite(one.distances["first"])]
    gap = np.mean([one.distances["core-mean:k=8"] - one.distances["first"] for one in known])
    assert summary["arms"][3]["difference"] == pytest.approx(gap)
    low, high = summary["arms"][3]["interval"]
    assert low <= gap <= high
    text = page(summary, found)
    assert NOT_SUCCESS in text
    assert "&lt;x&gt;" in text
    assert "<x>" not in text


def test_the_worst_frames_open_with_their_candidates(frames):
    found, *_ = frames
    summary = summarise(found, ["<x>", "y"], {"checkpoint": "c", "dataset": "d", "main": "core-mean:k=8"})
    text = page(summary, found)
    opened = re.findall(r"<details.*?</details>", text, re.DOTALL)
    assert len(opened) == len(found)
    worst = max(found, key=lambda one: one.dispersion)
    assert f"Episode {worst.episode}, frame {worst.frame}:" in opened[0]
    assert opened[0].count("<polyline") == 2 * (8 + 1 + 1)  # candidates, the selected chunk, the demonstrator
    assert "&lt;x&gt;: 8 candidates" in opened[0]
    assert "style=" not in text  # the content security policy would drop it
    many = replace(worst, physical=np.repeat(worst.physical, 40, 0), candidates=np.repeat(worst.candidates, 40, 0),
                   labels=np.repeat(worst.labels, 40))  # fmt: skip
    assert "candidates 32 of 320" in page(summary, [many] * 10)
    assert len(page(summary, [many] * 10)) < 400_000
    relative = page(summary, [replace(worst, physical=None)])
    assert "relative actions are not converted" in relative
    assert relative.count("stroke-dasharray") == 0
    nothing = replace(worst, physical=np.full_like(worst.physical, np.nan), planned=np.full_like(worst.planned, np.nan))
    assert "nan" not in page(summary, [nothing])


def test_frames_that_cannot_be_compared_are_counted_with_the_reason(frames):
    found, *_ = frames
    source = {"checkpoint": "c", "dataset": "d", "main": "core-mean:k=8"}
    assert summarise(found, ["x", "y"], source)["not_compared"] is None  # also at the end of an episode
    broken = [replace(one, distances=dict.fromkeys(one.distances, np.nan)) for one in found[:2]]
    summary = summarise([*broken, *found[2:]], ["x", "y"], source)
    assert summary["not_compared"].startswith(f"2 of {len(found)} frames are not compared: an action")
    assert summary["not_compared"] in page(summary, found)


def test_a_candidate_that_is_not_finite_leaves_the_spread_of_the_others(frames, monkeypatch):
    _, data, agent, indices = frames
    network = type(agent.policy.diffusion)
    own = network.conditional_sample

    def broken(self, *args, **kwargs):
        drawn = own(self, *args, **kwargs).clone()
        drawn[2:3] = np.nan
        return drawn

    monkeypatch.setattr(network, "conditional_sample", broken)
    with pytest.warns(RuntimeWarning, match="dropped 1 of 4"):
        found = list(inspect_frames(agent, data, [Spec.parse("medoid:k=4")], indices[:1]))
    assert found[0].labels[2] == -1
    assert np.isfinite(found[0].spread).all()
    assert (found[0].spread > 0).all()


def test_what_is_not_finite_has_no_number(frames):
    found, *_ = frames
    source = {"checkpoint": "c", "dataset": "d", "main": "core-mean:k=8"}
    summary = summarise([replace(found[0], spread=np.array([np.inf, 0.5])), *found[1:]], ["x", "y"], source)
    json.dumps(summary, allow_nan=False)
    assert summary["dimensions"][0]["spread"] is None
    assert "inf" not in re.findall(r"<td>(.*?)</td>", page(summary, found))


def test_recordings_name_the_series_demonstrated_actions(frames, monkeypatch, tmp_path):
    found, *_ = frames
    titles = []

    class Titles(Recording):
        def __init__(self, *args, **kwargs):
            titles.append(kwargs["actions"])
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("keystone_robotics.report.inspection.Recording", Titles)
    record_episodes(found, tmp_path, ["x", "y"], 10.0, worst=1)
    assert titles == ["demonstrated actions"]


def test_frames_have_the_images_of_the_dataset(frames):
    found, data, _, indices = frames
    for one, index in zip(found, indices, strict=True):
        image = data[index]["observation.image"].permute(1, 2, 0).numpy()
        assert (np.abs(one.images["observation.image"] / 255 - image) <= 1 / 255).all()


@pytest.mark.parametrize("rerun", [True, False])
def test_the_command_writes_page_numbers_and_says_what_they_are_not(
    demonstrations, checkpoint, tmp_path, capsys, monkeypatch, rerun
):
    if not rerun:
        monkeypatch.setitem(sys.modules, "rerun", None)
    arms = ["--arms", "first", "core-mean:k=4..8"]
    code = main(["inspect", str(checkpoint), str(demonstrations), *arms, "--frames", "4", "--out", str(tmp_path / "o")])
    said = capsys.readouterr().out
    assert code == 0
    assert ("no recordings: this needs Rerun" in said) is not rerun
    assert len(list((tmp_path / "o").glob("*.rrd"))) == 2 * rerun
    assert "is not success" in " ".join(said.split())
    numbers = json.loads((tmp_path / "o" / "inspect.json").read_text())
    assert numbers["frames"] == 4
    assert "<h1>" in (tmp_path / "o" / "index.html").read_text()


def test_opening_a_dataset_says_nothing_of_codecs(demonstrations, caplog, monkeypatch):
    """LeRobot warns where it cannot load the codecs, though there is no video."""
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    open_dataset(str(demonstrations))
    assert "torchcodec" not in caplog.text


def test_what_is_no_dataset_is_one_line(tmp_path):
    with pytest.raises(KeystoneError, match=r"holds no meta/info\.json"):
        open_dataset(str(tmp_path))
    with pytest.raises(KeystoneError, match="there is no folder"):
        open_dataset("./nothing/here")


def test_the_drawn_chunk_is_the_averaged_one(frames):
    found, *_ = frames
    assert all(one.chunk.shape == one.candidates.shape[1:] for one in found)
    assert any(np.abs(one.candidates - one.chunk).max((1, 2)).min() > 1e-6 for one in found)
