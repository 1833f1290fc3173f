"""`keystone view`: stored episodes, replayed for positions and images."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from recordings import columns, entities

from keystone_robotics.cli import main
from keystone_robotics.environments import find_benchmark
from keystone_robotics.evaluate.rollout import hash_state
from keystone_robotics.monitor import Calibration
from keystone_robotics.policies.agent import Agent
from keystone_robotics.records import EpisodeRecord, RoundRecord, Store
from keystone_robotics.report.episodes import Robot, find_episodes, record_episode
from keystone_robotics.view.recording import ABOUT
from report.runs_with_rounds import write_run_with_rounds


class Mouse(Agent):
    """Candidates are in units of the table; the environment takes pixels."""

    policy = None
    execute = 4

    def plan(self, histories, tasks):
        raise AssertionError("nothing is sampled to look at a run")

    def in_env_units(self, candidates, observation):
        return 512 * candidates


def make_mouse() -> Agent:
    return Mouse()


@pytest.fixture
def pusht_run(tmp_path):
    """Two rounds of an episode of PushT with four candidates each, without rolling out."""
    random = np.random.default_rng(0)
    env = find_benchmark("pusht").make("pusht")
    _, info = env.reset(seed=7)
    env.close()
    rounds = []
    for number in range(2):
        candidates = random.uniform(0.3, 0.7, (4, 8, 2)).astype(np.float32)
        rounds.append(
            RoundRecord(
                number=number, step=4 * number, candidates=candidates, labels=np.array([0, 0, 1, 0]), index=1,
                synthesised=False, consensus=0.75, spread=0.1, actions=512 * candidates[1, :4], dispersion=0.2,
                median_distance=1.0,
            )
        )  # fmt: skip
    episode = EpisodeRecord(
        "pusht", 3, False, arm="medoid:k=4", initial_state=hash_state(info["initial_state"]), initial_seed=7, noise_seed=1,
        steps=8, rounds=2, kept_rounds=tuple(rounds),
    )  # fmt: skip
    folder = tmp_path / "run"
    with Store(folder) as store:
        store.claim({"env": "pusht", "seed": 0, "keep_rounds": True})
        store.add_shard([episode], 1.0)
    policy = f"{__name__}:make_mouse"
    (folder / "settings.json").write_text(json.dumps({"policy": policy, "env": "pusht"}))
    return folder, rounds


def test_paths_are_in_the_pixels_of_the_replayed_images(pusht_run, tmp_path, capsys):
    folder, rounds = pusht_run
    out = tmp_path / "a.rrd"
    assert main(["view", str(folder), "--episode", "3", "--headless", "--out", str(out)]) == 0, capsys.readouterr()
    assert "note" not in capsys.readouterr().out
    found = columns(out, "action.chosen")
    assert found["frame_index"] == [0, 4]
    line = np.array(found["LineStrips2D:strips"][0][0])
    np.testing.assert_allclose(line[1:], 680 * rounds[0].candidates[1], rtol=1e-4)  # from where the finger is
    assert len(columns(out, "action.candidates")["LineStrips2D:strips"][0]) == 4
    images = columns(out, "observation.image")
    assert images["frame_index"] == [0, 2, 4, 6, 8]
    np.testing.assert_allclose(columns(out, "action")["Scalars:scalars"][4:], rounds[1].actions, rtol=1e-6)


def test_an_episode_that_begins_elsewhere_is_not_replayed(pusht_run, tmp_path, capsys):
    folder, _ = pusht_run
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps({**settings, "env": "nowhere"}))
    out = tmp_path / "a.rrd"
    assert main(["view", str(folder), "--episode", "3", "--headless", "--out", str(out)]) == 0
    assert "unknown environment 'nowhere'" in capsys.readouterr().out
    assert "observation.image" not in entities(out)
    assert "LineStrips2D:strips" in columns(out, "action.candidates")  # lanes


def test_several_episodes_an_alarm_and_a_function_of_ones_own(tmp_path, capsys):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.5, 1), "keystone:k=8": (0.7, 8)}, episodes=3)
    Calibration("dispersion", "high", "constant", (0.05,), 1, 0.05, 19).save(tmp_path / "alarm.json")
    code = main([
        "view", str(run), "--episode", "0", "1", "--task", "pull", "--headless", "--no-replay",
        "--alarm", str(tmp_path / "alarm.json"), "--path", "view.test_view_command:first_three",
    ])  # fmt: skip
    assert code == 0, capsys.readouterr()
    files = sorted((run / "rerun").iterdir())
    assert [path.name for path in files] == ["pull_keystone-k-8_episode_0.rrd", "pull_keystone-k-8_episode_1.rrd"]
    assert len(columns(files[0], "action.candidates")["LineStrips3D:strips"][0]) == 8
    scores = np.array(columns(files[0], "keystone.alarm")["Scalars:scalars"])
    np.testing.assert_allclose(scores[:, 1], 0.05)
    np.testing.assert_allclose(scores[:, 0], 0.1 * np.arange(6) / 6)


def first_three(chunks):
    return chunks[..., :3]


def test_arms_means_arm(tmp_path, capsys):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.5, 1), "keystone:k=8": (0.7, 8)}, episodes=2)
    given = ["--task", "push", "--headless", "--no-replay", "--out", str(tmp_path / "a.rrd")]
    assert main(["view", str(run), "--arms", "first", *given]) == 0, capsys.readouterr()
    assert "rounds of first" in capsys.readouterr().out


def test_an_averaged_chunk_that_cannot_be_drawn_is_told_from_the_nearest_candidate(tmp_path):
    run = write_run_with_rounds(tmp_path / "run", {"core-mean:k=4": (0.7, 4)}, episodes=2)
    (one,) = find_episodes(run, (0,), "push", None, 0)
    texts = {}
    for synthesised in (False, True):
        rounds = tuple(replace(record, synthesised=synthesised) for record in one.rounds)
        file = tmp_path / f"{synthesised}.rrd"
        record_episode(replace(one, rounds=rounds), file, Robot())
        texts[synthesised] = str(columns(file, ABOUT, static=True))
    assert "Thick yellow: what is executed." in texts[False]
    assert "the candidate nearest to what is executed, which was averaged" in texts[True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--episode", "9", "--task", "push"], "has no episode 9 of push: expected 0 to 2"),
        (["--episode", "1"], "has several tasks, choose one: --task pull | --task push"),
        (["--task", "pusj"], "has no task 'pusj': did you mean 'push'?"),
        (["--task", "push", "--arm", "frist"], "has no arm 'frist': did you mean 'first'?"),
        (["--task", "push", "--path", "nothing"], "expected package.module:function"),
        (["--task", "push", "--arm", "bare"], "keep them with `keystone eval --keep-rounds`"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path, capsys, arguments, said):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.5, 1), "bare": (0.7, None)}, episodes=3)
    assert main(["view", str(run), "--headless", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_without_options_the_first_episode_that_depends_on_the_arm_is_shown(tmp_path):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.0, 1), "keystone:k=8": (1.0, 8)}, episodes=3)
    with Store(run) as store:
        stored = store.episodes()
    solved = {(one.task, one.episode, one.arm): one.success for one in stored}
    changed = [key[:2] for key, won in solved.items() if won != solved[(*key[:2], "first")]]
    (shown,) = find_episodes(run)
    assert (shown.record.task, shown.record.episode) == changed[0]
    assert shown.record.arm == "keystone:k=8"
    (shown,) = find_episodes(run, task="push")
    assert (shown.record.task, shown.record.episode) == next(key for key in changed if key[0] == "push")


@pytest.mark.parametrize("link", ["rerun", "rerun/push_first_episode_0.rrd"])
def test_links_in_a_run_are_not_followed(tmp_path, capsys, link):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.5, 1)}, episodes=3)
    target = tmp_path / "mine"
    if link == "rerun":
        target.mkdir()
    else:
        target.write_text("mine")
        (run / "rerun").mkdir()
    (run / link).symlink_to(target)
    given = ["view", str(run), "--task", "push", "--headless", "--no-replay"]
    assert main(given) == 2
    assert f"{link} is a link to {target}" in capsys.readouterr().err
    assert list(target.iterdir()) == [] if target.is_dir() else target.read_text() == "mine"
    assert main([*given, "--out", str(tmp_path / "a.rrd")]) == 0


def test_without_rerun_it_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    (tmp_path / "episodes.sqlite").touch()
    assert main(["view", str(tmp_path), "--headless"]) == 2
    assert 'pip install "keystone-robotics[rerun]"' in capsys.readouterr().err


@pytest.mark.parametrize("display", [":7", None])
def test_the_viewer_opens_where_there_is_a_display(tmp_path, capsys, monkeypatch, display):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.5, 1)}, episodes=1, error=None)
    started = []
    monkeypatch.setattr("subprocess.Popen", lambda words, **options: started.append((words, options)))
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    file = tmp_path / "a.rrd"
    assert main(["view", str(run), "--task", "push", "--no-replay", "--out", str(file)]) == 0
    if display:
        ((words, options),) = started
        assert words == [sys.executable, "-m", "rerun", str(file)]
        assert options["start_new_session"]  # it outlives the command
    else:
        assert started == []
        assert f"open it where there is one, with `rerun {file}`" in " ".join(capsys.readouterr().out.split())
