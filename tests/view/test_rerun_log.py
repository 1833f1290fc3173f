"""Live rounds in a Rerun recording: what is in it, how large it is, and that it never costs a round."""

import logging
import socket
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from recordings import columns, entities

import keystone_robotics as keystone
from keystone_robotics.colours import PALETTE, rgba
from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations import attach_with_log
from keystone_robotics.monitor import Alarm, Calibration
from keystone_robotics.monitor.observed import observe
from keystone_robotics.view import live
from keystone_robotics.view.picture import STEPS, Lanes, thin, thin_actions


class TwoWays(torch.nn.Module):
    """Goes left or right, by chance; `reset` as LeRobot's policies have it."""

    def __init__(self, steps=16, dims=7):
        super().__init__()
        self.steps, self.dims = steps, dims

    def act(self, rows=1):
        noise = torch.randn(rows, self.steps, self.dims)
        way = torch.sign(noise[:, :1, :1])
        return way * torch.linspace(0, 1, self.steps)[:, None] + 0.02 * noise

    def reset(self):
        pass


def first_three(chunks):
    return chunks[..., :3].cumsum(-2), chunks[..., 6] > 0


def record(target, rounds=3, k=16, rule="keystone", path=first_three, rows=1, policy=None, **options):
    policy = policy or TwoWays(**options)
    handle = keystone.attach(policy, k=k, rule=rule, site="act", seed=0)
    events = []
    handle.subscribe(events.append)
    with keystone.RerunLog(target, path=path) as log:
        handle.subscribe(log)
        for _ in range(rounds):
            policy.act(rows)
    return events, log


def test_candidates_are_paths_with_the_colour_of_their_cluster(tmp_path):
    events, _ = record(tmp_path / "a.rrd")
    found = columns(tmp_path / "a.rrd", "action.candidates")
    assert found["frame_index"] == [0, 16, 32]  # a method without a configuration: whole chunks are executed
    assert found["round"] == [0, 1, 2]
    assert "timestamp" in found
    for event, lines, colours in zip(events, found["LineStrips3D:strips"], found["LineStrips3D:colors"], strict=True):
        labels = event.selection.labels[0]
        drawn, steps = thin(labels, int(event.selection.index[0]), 16, 3)
        expected = first_three(event.candidates[0].numpy())[0][drawn][:, steps]
        np.testing.assert_allclose(np.array(lines), expected, rtol=1e-5, atol=1e-6)
        assert colours == [rgba(PALETTE[label]) for label in labels[drawn]]
        assert len(set(colours)) == 2
    chosen = columns(tmp_path / "a.rrd", "action.chosen")["LineStrips3D:strips"]
    best = events[0].candidates[0, int(events[0].selection.index[0])].numpy()
    np.testing.assert_allclose(np.array(chosen[0][0]), first_three(best)[0], rtol=1e-5, atol=1e-6)
    glyphs = columns(tmp_path / "a.rrd", "action.gripper")["Points3D:positions"]
    closed = best[:, 6] > 0
    assert len(glyphs[0]) == 1 + (closed[1:] != closed[:-1]).sum()


def test_it_has_lerobots_names_and_the_statistics(tmp_path):
    events, _ = record(tmp_path / "a.rrd")
    assert {"action", "action.candidates", "action.chosen", "action.gripper", "keystone"} <= entities(
        tmp_path / "a.rrd"
    )
    actions = columns(tmp_path / "a.rrd", "action")
    assert actions["frame_index"] == list(range(48))
    np.testing.assert_allclose(actions["Scalars:scalars"][:16], events[0].selection.chunk[0].numpy(), rtol=1e-6)
    numbers = columns(tmp_path / "a.rrd", "keystone")["Scalars:scalars"]
    expected = [[event.selection.consensus[0], event.selection.dispersion[0]] for event in events]
    np.testing.assert_allclose(numbers, expected)


def test_without_positions_every_dimension_has_a_lane(tmp_path):
    events, _ = record(tmp_path / "a.rrd", path=None, dims=3)
    lines = np.array(columns(tmp_path / "a.rrd", "action.candidates")["LineStrips2D:strips"][0])
    lanes = Lanes.around([events[0].candidates[0].numpy()], 0.5)
    labels, index = events[0].selection.labels[0], int(events[0].selection.index[0])
    drawn, steps = thin(labels, index, 16, 2, lanes=3)
    np.testing.assert_allclose(lines, lanes.lines(events[0].candidates[0].numpy()[drawn])[:, steps], atol=1e-5)
    assert lines[:, :, 1].min() > 0  # inside of the lanes
    names = columns(tmp_path / "a.rrd", "action.lanes/names", static=True)["Points2D:labels"][0]
    assert [name.partition(":")[0] for name in names] == ["dimension 0", "dimension 1", "dimension 2"]


def test_an_averaged_chunk_is_drawn_itself(tmp_path):
    events, _ = record(tmp_path / "a.rrd", rule="core-mean")
    chosen = columns(tmp_path / "a.rrd", "action.chosen")["LineStrips3D:strips"]
    for event, line in zip(events, chosen, strict=True):
        np.testing.assert_allclose(np.array(line[0]), first_three(event.selection.chunk[0].numpy())[0], atol=1e-5)


@pytest.mark.parametrize(
    ("path", "of", "first"), [(first_three, "3D", "candidates"), (None, "2D", "candidates, by dimension")]
)
def test_the_views_are_stored_with_it(tmp_path, path, of, first):
    chunk = pytest.importorskip("rerun.chunk", reason="this version of Rerun does not read views back")
    record(tmp_path / "a.rrd", rounds=1, path=path)
    reader = chunk.RrdReader(tmp_path / "a.rrd")
    (stored,) = reader.blueprints()
    rows = [one.to_record_batch().to_pylist()[0] for one in reader.stream(store=stored)]
    views = {
        row["ViewBlueprint:display_name"][0]: row["ViewBlueprint:class_identifier"][0]
        for row in rows
        if "ViewBlueprint:display_name" in row
    }
    assert views == {
        first: of,
        "executed actions": "TimeSeries",
        "agreement, 0 to 1": "TimeSeries",
        "about": "TextDocument",
    }
    drawn = [row["ViewContents:query"] for row in rows if "ViewContents:query" in row]
    assert any({"action.candidates", "action.chosen", "action.gripper"} <= {*names} for names in drawn)
    assert [row["TimePanelBlueprint:timeline"] for row in rows if "TimePanelBlueprint:timeline" in row] == [
        ["frame_index"]
    ]


@pytest.mark.parametrize(("steps", "dims"), [(16, 7), (50, 32), (100, 14)])
@pytest.mark.parametrize("path", [first_three, None], ids=["paths", "lanes"])
def test_a_round_takes_less_than_5_kb(tmp_path, path, steps, dims):
    """With the layout of the views, which is there once: 50 to 100 kB."""
    record(tmp_path / "a.rrd", rounds=64, path=path, steps=steps, dims=dims)
    assert (tmp_path / "a.rrd").stat().st_size / 64 < 5000


def test_actions_of_long_chunks_keep_some_of_their_steps(tmp_path):
    events, _ = record(tmp_path / "a.rrd", steps=100, dims=14)
    kept = thin_actions(100, 14)
    assert 8 <= len(kept) < 20
    actions = columns(tmp_path / "a.rrd", "action")
    assert actions["frame_index"] == [100 * number + step for number in range(3) for step in kept]
    expected = np.concatenate([event.selection.chunk[0].numpy()[kept] for event in events])
    np.testing.assert_allclose(actions["Scalars:scalars"], expected, rtol=1e-6)
    begins = columns(tmp_path / "a.rrd", "keystone")["timestamp"]
    times = actions["timestamp"]
    assert times[:: len(kept)] == begins  # of a round, and of its first step
    assert times == sorted(times)


def test_of_many_dimensions_those_that_differ_most_have_a_lane(tmp_path):
    quiet = [0, 3, 30]

    class Humanoid(TwoWays):
        def act(self, rows=1):
            chunk = super().act(rows)
            chunk[..., quiet] = torch.linspace(-1, 1, self.steps)[:, None]
            return chunk

    record(tmp_path / "a.rrd", path=None, policy=Humanoid(steps=50, dims=32))
    names = columns(tmp_path / "a.rrd", "action.lanes/names", static=True)["Points2D:labels"][0]
    numbers = [int(name.partition(":")[0].removeprefix("dimension ")) for name in names]
    assert len(numbers) == 16
    assert numbers == sorted(numbers)
    assert not {*quiet} & {*numbers}
    strips = columns(tmp_path / "a.rrd", "action.candidates")["LineStrips2D:strips"]
    assert len(strips[0]) >= 2 * 16  # one candidate of each cluster


@pytest.mark.parametrize(("k", "steps", "dims"), [(64, 50, 32), (16, 100, 14), (1, 1, 1), (200, 8, 2), (8, 50, 7)])
def test_large_rounds_are_thinned_and_show_every_cluster(k, steps, dims):
    labels = np.arange(k) % min(k, 4)
    index = k - 1
    for coordinates, lanes in ((3, 1), (2, dims)):
        drawn, kept = thin(labels, index, steps, coordinates, lanes)
        assert index in drawn
        assert (kept[0], kept[-1]) == (0, steps - 1)
        assert len(kept) >= min(steps, STEPS) or len(drawn) == 1
        if lanes == 1:
            assert set(labels[drawn]) == set(labels)
            assert len(drawn) * len(kept) * 4 * coordinates < 2500


def test_every_episode_is_a_recording_of_its_own(tmp_path):
    policy = TwoWays()
    handle = keystone.attach(policy, k=4, site="act")
    with keystone.RerunLog(tmp_path / "a.rrd") as log:
        handle.subscribe(log)
        policy.act()
        policy.act()
        policy.reset()
        policy.act()
        with handle.for_episodes(["blue", "red"]):
            policy.act(2)
    assert [path.name for path in log.files] == ["a.rrd", "a_1.rrd", "a_2.rrd", "a_3.rrd"]
    rounds = [columns(path, "keystone")["round"] for path in sorted(log.files)]
    assert rounds == [[0, 1], [0], [0], [0]]


def test_a_running_server_takes_the_rounds_without_an_error(caplog):
    rerun = pytest.importorskip("rerun")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = rerun.RecordingStream("listener")
    url = server.serve_grpc(grpc_port=port)
    _, log = record(url, rounds=2)
    assert not log.dropped
    assert log.files == []
    assert "log to Rerun ends" not in caplog.text


def test_nobody_listens_and_rounds_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "CLOSING_SECONDS", 0.2)
    events, _ = record("rerun+http://127.0.0.1:1/proxy", rounds=5, k=4)
    assert len(events) == 5


def test_a_recording_that_cannot_be_finished_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(live, "FILE_CLOSING_SECONDS", 0.2)
    release = threading.Event()
    record(tmp_path / "a.rrd", rounds=1, k=4, path=lambda chunks: release.wait(10) and first_three(chunks))
    release.set()
    assert f"{tmp_path / 'a.rrd'} did not take the last rounds within 0.2 s" in caplog.text


def test_a_full_queue_drops_rounds_instead_of_waiting(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(live, "WAITING", 2)
    release = threading.Event()

    def slow(chunks):
        release.wait(10)
        return first_three(chunks)

    policy = TwoWays()
    handle = keystone.attach(policy, k=4, site="act")
    log = keystone.RerunLog(tmp_path / "a.rrd", path=slow)
    handle.subscribe(log)
    for _ in range(8):
        policy.act()
    assert log.dropped >= 5
    release.set()
    with caplog.at_level(logging.WARNING):
        log.close()
    assert f"could not keep up with {log.dropped} rounds" in caplog.text
    assert len(columns(tmp_path / "a.rrd", "keystone")["round"]) == 8 - log.dropped


def test_a_path_function_that_fails_is_reported_once_and_costs_no_round(tmp_path, caplog):
    events, _ = record(tmp_path / "a.rrd", rounds=4, path=lambda chunks: chunks[0])
    assert len(events) == 4
    said = [line.message for line in caplog.records if "Rerun" in line.message]
    assert len(said) == 1
    assert (
        "rounds go on: ValueError: the path function made (16, 7) of chunks (16, 16, 7): expected (16, steps, 2"
        in said[0]
    )


def test_a_disk_that_disappears_costs_no_round(tmp_path, caplog):
    folder = tmp_path / "gone"
    policy = TwoWays()
    handle = keystone.attach(policy, k=4, site="act")
    with keystone.RerunLog(folder / "a.rrd") as log:
        handle.subscribe(log)
        (folder / "a.rrd").unlink()
        folder.rmdir()
        policy.act()
    assert handle.stats["rounds"] == 1
    assert caplog.text.count("the log to Rerun ends") == 1


def test_large_batches_are_not_copied_whole(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(live, "COPIED", 3 * 4 * 4 * 16 * 7)
    _, log = record(tmp_path / "a.rrd", rounds=2, k=4, rows=8)
    assert len(log.files) == 3
    assert caplog.text.count("shows the first 3 of 8 rows") == 1


def test_more_rows_than_open_recordings_do_not_make_a_file_each_round(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(live, "OPEN_EPISODES", 3)
    _, log = record(tmp_path / "a.rrd", rounds=3, k=4, rows=5)
    assert len(log.files) == 3
    assert [columns(path, "keystone")["round"] for path in log.files] == [[0, 1, 2]] * 3
    assert caplog.text.count("shows the first 3 of 5 rows") == 1


def test_more_episodes_than_open_recordings_one_row_at_a_time_do_not_make_a_file_each_round(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(live, "OPEN_EPISODES", 3)
    policy = TwoWays()
    events = []
    keystone.attach(policy, k=4, site="act", seed=0).subscribe(events.append)
    policy.act()
    with keystone.RerunLog(tmp_path / "a.rrd", path=first_three) as log:
        for _ in range(4):
            for name in "abcd":
                log(replace(events[0], episodes=(name,)))
    assert len(log.files) == 4
    assert sorted(len(columns(path, "keystone")["round"]) for path in log.files) == [1, 4, 4, 4]
    assert caplog.text.count("more than 3 episodes at a time") == 1


def test_rounds_that_the_alarm_cannot_look_at_are_shown_without_a_score(tmp_path, monkeypatch):
    policy = TwoWays()
    handle = keystone.attach(policy, k=4, site="act", seed=0)
    alarm = Alarm(Calibration("dispersion", "high", "constant", (0.5,), 1, 0.05, 19))
    broken = [True, False]

    def fails_once(event):
        if broken.pop(0):
            raise RuntimeError("no observation")
        return observe(event)

    monkeypatch.setattr("keystone_robotics.monitor.alarm.observe", fails_once)
    handle.subscribe(alarm)
    with keystone.RerunLog(tmp_path / "a.rrd", alarm=alarm) as log:
        handle.subscribe(log)
        policy.act()
        policy.act()
    numbers = np.array(columns(tmp_path / "a.rrd", "keystone.alarm")["Scalars:scalars"])
    assert np.isnan(numbers[0]).all()
    assert np.isfinite(numbers[1]).all()


def test_frames_advance_by_the_steps_that_the_candidates_agree_on(tmp_path):
    policy = TwoWays()
    handle = keystone.attach(policy, k=16, site="act", seed=0, execute="2..8")
    agreed = []
    handle.subscribe(lambda event: agreed.append(int(event.selection.agreed_steps[0])))
    with keystone.RerunLog(tmp_path / "a.rrd") as log:
        handle.subscribe(log)
        for _ in range(3):
            policy.act()
    assert agreed[0] < 8
    assert columns(tmp_path / "a.rrd", "keystone")["frame_index"] == [0, agreed[0], sum(agreed[:2])]
    assert columns(tmp_path / "a.rrd", "action")["frame_index"] == list(range(sum(agreed)))


def test_the_environment_switches_it_on(tmp_path):
    class Pair(torch.nn.Module):
        def encode(self, observation):
            return observation

        def sample(self, context, noise):
            return context[:, None, :] + noise

        def forward(self, observation):
            return self.sample(self.encode(observation), torch.randn(len(observation), 8, 2))

    own = Pair()
    attach_with_log(own, keystone.Spec(k=4), {"KEYSTONE_RERUN": str(tmp_path / "a.rrd")})
    own(torch.zeros(1, 2))
    engine = keystone.attached(own).engine
    (log,) = engine.listeners.find(keystone.RerunLog)
    log.close()
    assert columns(tmp_path / "a.rrd", "keystone")["round"] == [0]
    other = Pair()
    with pytest.raises(KeystoneError, match="expected spawn, rerun"):
        attach_with_log(other, keystone.Spec(k=4), {"KEYSTONE_RERUN": "localhost:9876"})
    assert keystone.attached(other) is None


def test_targets_that_cannot_be_written_are_refused_when_it_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KeystoneError, match="cannot be written"):
        keystone.RerunLog(tmp_path / "file" / "a.rrd")
