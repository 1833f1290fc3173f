"""The alarm as a listener: per episode and row, online as offline, and never at the cost of a round."""

import json
import logging
import threading

import numpy as np
import pytest
import torch
from clouds import cloud, event_of
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.attachment import reattach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.handle import Handle
from keystone_robotics.integrations import attach_with_log
from keystone_robotics.monitor import SCORES, Alarm, Calibration, read_run
from keystone_robotics.monitor import alarm as alarm_module
from keystone_robotics.monitor.conformal import smooth
from keystone_robotics.monitor.observed import observe
from keystone_robotics.sample.episodes import EpisodeRow
from keystone_robotics.sample.weights import weights_fingerprint
from keystone_robotics.select import ActionSpace
from toy import save_random_flow, toy_settings


def make(score="dispersion", limit=0.5, window=1, **given):
    return Alarm(Calibration(score, "high", "constant", (limit,), window, 0.05, 19, **given))


def clouds(*spreads, seed=0):
    """(B, 16, 8, 3), one spread per row."""
    random = np.random.default_rng(seed)
    return np.stack([cloud(random, spread=spread) for spread in spreads])


CALM, WILD = 0.01, 3.0


class Policy(nn.Module):
    """Candidates spread as the observation says."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, spread):
        return self.sample(self.encode(spread), torch.randn(len(spread), 8, 2))

    def encode(self, spread):
        return spread

    def sample(self, context, noise):
        return torch.arange(8.0)[:, None] + context[:, None, None] * noise

    def reset(self):
        """As LeRobot's: called at the beginning of episodes."""


def rounds(policy, *spreads):
    for spread in spreads:
        policy(torch.as_tensor(spread).reshape(-1))


def test_it_rings_once_in_an_episode_and_says_why():
    alarm, heard = make(), []
    alarm.on(heard.append)
    for number, spread in enumerate((CALM, CALM, WILD, WILD, CALM)):
        alarm(event_of(clouds(spread), ["a"], number))
    (event,) = heard
    assert (event.episode, event.round, event.limit) == ("a", 2, 0.5)
    assert event.value > 0.5
    assert event.reason == f"round 2: dispersion {event.value:.2f} > 0.50"
    assert alarm.active == {"a": event.reason}
    fields = alarm.as_fields("a")
    assert fields["alarm"] is True
    assert fields["alarm_reason"] == event.reason
    assert fields["alarm_score"] < 0.1  # of the last round
    assert alarm.as_fields() == fields


def test_an_episode_that_it_has_not_seen_is_an_error_and_not_the_absence_of_an_alarm():
    alarm = make()
    with pytest.raises(KeystoneError, match="which episode; the latest are none yet"):
        alarm.as_fields()
    alarm(event_of(clouds(CALM, CALM), ["a", "b"]))
    with pytest.raises(KeystoneError, match="no round of episode 'unknown' was seen; the latest are 'a', 'b'"):
        alarm.as_fields("unknown")
    with pytest.raises(KeystoneError, match="which episode; the latest are 'a', 'b'"):
        alarm.as_fields()
    other = event_of(clouds(CALM), ["c"])
    assert alarm.row_fields(other) == [dict.fromkeys(("alarm", "alarm_score", "alarm_limit", "alarm_reason"))]


@pytest.mark.parametrize("score", ["overlap-distance", "stac-single"])
def test_an_alarm_that_cannot_ring_says_so_once(score, caplog):
    policy, alarm = Policy(), make(score, 1e-9)
    handle = keystone.attach(policy, k=4, execute=8, seed=0)
    handle.subscribe(alarm)
    rounds(policy, CALM, WILD, CALM)
    keystone.detach(policy)
    said = [one.message for one in caplog.records if "cannot ring" in one.message]
    assert len(said) == 1
    assert "(8 of 8 steps are executed); execute fewer" in said[0]
    assert not alarm.active


def test_live_rounds_of_an_adaptive_horizon_overlap_by_what_is_executed():
    policy, alarm = Policy(), make("overlap-distance", 1e9)
    handle = keystone.attach(policy, "medoid:k=4,execute=3..8:0", seed=0)
    seen = []
    handle.subscribe(lambda event: seen.extend(one.executed for one in observe(event)))
    handle.subscribe(alarm)
    rounds(policy, CALM, WILD)
    keystone.detach(policy)
    assert seen == [3, 3]
    assert alarm.as_fields()["alarm_score"] > 0


def test_the_reason_names_the_split_and_the_window():
    random = np.random.default_rng(0)
    alarm = make("variance", 1e-6, window=3)
    for _ in range(2):
        alarm(event_of(cloud(random, modes=2, spread=0.001)[None], ["a"], rule="cluster-medoid"))
    (reason,) = alarm.active.values()
    assert reason.endswith("; candidates split 8 : 8")
    low = Alarm(Calibration("variance", "low", "constant", (1e9,), 2, 0.05, 19))
    low(event_of(clouds(CALM), ["a"]))
    assert " < 1e+09" in next(iter(low.active.values()))


def test_rows_and_clients_have_alarms_of_their_own():
    alarm = make()
    alarm(event_of(clouds(CALM, WILD, CALM), ["a", "b", "c"]))
    assert set(alarm.active) == {"b"}
    alarm(event_of(clouds(WILD), ["c"]))  # another batch, another client
    assert set(alarm.active) == {"b", "c"}
    assert "round 1" in alarm.active["c"]
    alarm.forget("b")
    alarm(event_of(clouds(CALM), ["b"]))  # reconnected: a new episode
    assert set(alarm.active) == {"c"}
    alarm.reset()
    assert alarm.active == {}


def test_comparisons_stay_within_an_episode():
    alarm = make("overlap-distance", 0.5)
    first, second = clouds(CALM), clouds(CALM) + 5.0
    alarm(event_of(first, ["a"]))
    alarm(event_of(second, ["b"]))
    assert alarm.active == {}
    alarm(event_of(second, ["a"]))
    assert set(alarm.active) == {"a"}


def test_reset_begins_new_episodes_where_nobody_names_them():
    policy, alarm = Policy(), make()
    handle = keystone.attach(policy, k=16, rule="medoid", seed=0)
    handle.subscribe(alarm)
    rounds(policy, [CALM, WILD * 10])
    assert set(alarm.active) == {EpisodeRow(0, 1)}
    policy.reset()
    rounds(policy, [CALM, CALM])
    assert alarm.active == {}
    handle.reset_history()
    rounds(policy, [WILD * 10])
    assert set(alarm.active) == {EpisodeRow(2, 0)}
    with handle.for_episodes(["robot 7"]):
        rounds(policy, [WILD * 10])
    assert "robot 7" in alarm.active
    keystone.detach(policy)
    assert type(policy) is Policy
    reattach(handle)
    policy.reset()
    rounds(policy, [CALM])
    assert set(alarm.active) == {"robot 7"}
    keystone.detach(policy)


def test_rows_keep_their_episodes_when_others_end():
    policy, heard = Policy(), []
    handle = keystone.attach(policy, k=4, seed=0)
    handle.subscribe(lambda event: heard.append(event.episodes))
    rounds(policy, [CALM] * 3)
    handle.keep_rows([0, 2])
    rounds(policy, [CALM] * 2)
    handle.keep_rows([1])
    rounds(policy, [CALM])
    with handle.for_episodes(["one for two rows"]):
        rounds(policy, [CALM] * 2)
    with handle.for_episodes(iter("abc")):
        rounds(policy, [CALM] * 2, [CALM])
    assert heard == [
        ((0, 0), (0, 1), (0, 2)), ((0, 0), (0, 2)), ((0, 2),), ((0, 0), (0, 1)), ("a", "b"), ("c",),
    ]  # fmt: skip


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(alarm_module, "EPISODES", 3)
    alarm = make()
    for number in range(10):
        alarm(event_of(clouds(WILD), [number]))
    assert set(alarm.active) == {7, 8, 9}


def test_a_copy_of_a_policy_reports_to_the_same_alarm():
    import copy

    policy, alarm = Policy(), make()
    keystone.attach(policy, k=16, rule="medoid", seed=0).subscribe(alarm)
    rounds(copy.deepcopy(policy), [WILD * 10])
    assert alarm.active


# ---- nothing costs a round


def test_a_callback_that_raises_is_logged_and_the_others_are_called(caplog):
    alarm, heard = make(), []

    def fail(event):
        raise RuntimeError("stop the robot")

    alarm.on(fail)
    remove = alarm.on(heard.append)
    with caplog.at_level(logging.ERROR, "keystone"):
        alarm(event_of(clouds(WILD), ["a"]))
        remove()
        alarm(event_of(clouds(WILD), ["b"]))
    assert len(heard) == 1
    assert [record.exc_info[0] for record in caplog.records] == [RuntimeError] * 2
    with pytest.raises(TypeError, match="expected a function"):
        alarm.on("stop")


@pytest.mark.parametrize("score", sorted(SCORES))
def test_one_candidate_and_broken_ones_say_nothing_and_do_not_raise(score, caplog):
    alarm = make(score, -1e9)
    one = clouds(CALM)[:, :1]
    with caplog.at_level(logging.WARNING, "keystone"):
        for _ in range(3):
            alarm(event_of(one, ["a"], rule="first"))
    assert bool(alarm.active) == (score == "stac-single")
    assert len([record for record in caplog.records if "needs" in record.message]) == (score != "stac-single")
    broken = clouds(CALM)
    broken[:, :14] = np.nan
    with pytest.warns(RuntimeWarning, match="dropped"):
        event = event_of(broken, ["b"])
    alarm(event)
    alarm(event)
    assert not [record for record in caplog.records if "failed" in record.message]


def test_an_event_it_cannot_read_is_said_once(caplog):
    alarm = make("variance")
    event = event_of(clouds(CALM), ["a"])
    object.__setattr__(event, "candidates", None)
    with caplog.at_level(logging.WARNING, "keystone"):
        alarm(event)
        alarm(event)
    (record,) = caplog.records
    assert "says nothing" in record.message


def test_a_policy_of_its_own_code_is_watched_too():
    policy, alarm = Policy(), make("stac-single", 1e-9)
    handle = keystone.attach(policy, k=1)
    handle.execute = 4
    handle.subscribe(alarm)
    rounds(policy, [1.0], [1.0])
    assert alarm.active


def test_threads_share_an_alarm():
    alarm = make("stac", 1e9)
    events = [event_of(clouds(CALM, seed=seed), [seed % 4]) for seed in range(16)]
    threads = [threading.Thread(target=lambda part=part: [alarm(one) for one in events[part::4]]) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(alarm.as_fields(name)["alarm_score"] is not None for name in range(4))


# ---- another policy


def calibrated_on(policy, spec="medoid:k=16", **given):
    handle = keystone.attach(policy, spec)
    found = {"weights": weights_fingerprint(handle.engine), "spec": spec, "policy": "mine", **given}
    keystone.detach(policy)
    return found


@pytest.mark.parametrize(
    ("options", "given", "says"),
    [
        ({}, {}, ""),
        ({"compile": False, "fast": False}, {}, ""),
        ({}, {"spec": "medoid:k=auto"}, ""),  # how many that were is unknown
        ({"k": 8}, {}, "k was 16, now 8"),
        ({"rule": "core-mean"}, {}, "rule was medoid, now core-mean"),
        ({"temperature": 0.5}, {}, "temperature was 1.0, now 0.5"),
        (
            {"execute": 4},
            {"execute": 8},
            "steps that count were 0 to 7, now 0 to 3; 8 steps of a chunk were executed, now 4",
        ),
        (
            {"execute": 4, "window": "chunk"},
            {"spec": "medoid:k=16,execute=4"},
            "steps that count were 0 to 3, now 0 to 7",
        ),
        ({"space": ActionSpace(dims=2, steps=range(8))}, {}, ""),  # as where nothing is said
        ({"space": ActionSpace(dims=[1])}, {}, "dimensions that count were 0, 1, now 1"),
        ({"space": ActionSpace(scale=2)}, {}, "their scales were 1, now 2"),
        ({}, {"spec": "medoid:k=16,gripper=1"}, "grippers were 1 (0.0), now none"),
        (
            {},
            {"spec": 'medoid:k=16,space={"dims":7}'},
            "what counted in distances does not fit this policy: dims=7 does",
        ),
        ({}, {"spec": "none-of-ours:k=16"}, "its Spec 'none-of-ours:k=16' is unknown here"),
        ({}, {"weights": "other"}, "the policy's weights are not those of mine"),
    ],
)
def test_another_policy_or_spec_is_warned_of_and_never_raises(options, given, says, caplog):
    policy = Policy()
    alarm = make(**{**calibrated_on(policy), **given})
    handle = keystone.attach(policy, **{"k": 16, "rule": "medoid", **options})
    with caplog.at_level(logging.WARNING, "keystone"):
        handle.subscribe(alarm)
        rounds(policy, [CALM], [CALM])
    assert alarm.mismatch.startswith(says)
    assert bool(alarm.mismatch) == bool(says)
    assert len([record for record in caplog.records if "something else" in record.message]) == bool(says)


def test_options_that_change_between_rounds_are_compared_again_and_each_difference_is_said_once(caplog):
    policy = Policy()
    alarm = make(**calibrated_on(policy))
    handle = keystone.attach(policy, k=16, rule="medoid")
    handle.subscribe(alarm)
    seen = []
    for k, space in [(16, None), (8, None), (16, None), (8, None), (16, ActionSpace(dims=1))]:
        handle.k, handle.space = k, space
        rounds(policy, [CALM])
        seen.append(alarm.mismatch)
    other = "k was 16, now 8"
    assert seen == ["", other, "", other, "dimensions that count were 0, 1, now 0"]
    assert len([record for record in caplog.records if "something else" in record.message]) == 2


def test_a_policy_that_cannot_be_compared_is_watched_all_the_same(caplog):
    policy, alarm = Policy(), make(limit=0.3, weights="known")
    policy.offloaded = nn.Parameter(torch.ones(3, device="meta"))
    keystone.attach(policy, k=16, rule="medoid", seed=0).subscribe(alarm)
    rounds(policy, [CALM], [WILD * 10])
    assert alarm.active
    assert "cannot be compared with this policy: NotImplementedError" in alarm.mismatch
    assert caplog.text.count("cannot be compared") == 1


def test_another_task_is_warned_of_once_where_the_caller_says_it(caplog):
    make().check_task("unknown")
    alarm = make(tasks=tuple("abcdefg"))
    for task in ("a", "", "open\nit", "close it"):
        alarm.check_task(task)
    (record,) = caplog.records
    assert "calibrated on 'a', 'b', 'c', 'd', 'e' and 2 more: its rate" in record.message
    assert r"for task 'open\nit', unless" in record.message


@pytest.mark.parametrize("weights", ["", "known"])
def test_without_a_fingerprint_the_policy_cannot_be_compared_which_is_said_once(weights, caplog):
    policy = Policy()
    given = calibrated_on(policy)
    alarm = make(**{**given, "weights": weights and given["weights"]})
    for _ in range(2):
        keystone.attach(policy, k=16, rule="medoid").subscribe(alarm)
        rounds(policy, [CALM], [CALM])
        keystone.detach(policy)
    assert sum("cannot be checked" in one.message for one in caplog.records) == (not weights)
    assert alarm.mismatch == ""


def test_weights_count_and_their_precision_does_not():
    policy = Policy()
    found = calibrated_on(policy)
    assert calibrated_on(policy.to(torch.bfloat16)) == found
    with torch.no_grad():
        policy.weight *= 2
    assert calibrated_on(policy)["weights"] != found["weights"]


# ---- online as offline


@pytest.mark.parametrize("relative", [(), (0,)])
def test_live_scores_are_those_of_the_stored_rounds(tmp_path, monkeypatch, relative):
    policy = save_random_flow(tmp_path / "policy", relative=relative)
    alarms = {name: make(name, 1e9, window=2) for name in SCORES}
    live = {name: {} for name in SCORES}
    subscribe = Handle.subscribe

    def note(event):
        for name, alarm in alarms.items():
            alarm(event)
            for episode in event.episodes:
                live[name].setdefault(episode, []).append(alarm.as_fields(episode)["alarm_score"])

    def subscribe_both(handle, listener):  # as the rollout records a round
        stop, stop_too = subscribe(handle, note), subscribe(handle, listener)
        return lambda: (stop(), stop_too())

    monkeypatch.setattr(Handle, "subscribe", subscribe_both)
    settings = toy_settings(policy, tmp_path, arms=("medoid:k=6",), keep_rounds=True, latency=False, episodes=4)
    evaluate(settings, tmp_path / "run")
    read = read_run(tmp_path / "run")
    assert read.execute == 3
    assert sum(len(one.scores["stac"]) for one in read.episodes) > 8
    for one in read.episodes:
        for name, scores in one.scores.items():
            stored = smooth(scores, 2)
            now = np.array(live[name][one.record.task, one.record.repeat, one.record.episode], float)
            np.testing.assert_allclose(now, stored, rtol=1e-6, atol=1e-9, err_msg=name)
            assert np.isfinite(stored[1:]).all(), name


def test_the_environment_subscribes_an_alarm_and_the_log_has_its_fields(tmp_path):
    make(limit=0.3).calibration.save(tmp_path / "alarm.json")
    files = {"KEYSTONE_ALARM": str(tmp_path / "alarm.json"), "KEYSTONE_LOG": str(tmp_path / "rounds.jsonl")}
    policy = Policy()
    attach_with_log(policy, keystone.Spec("medoid", 16), files)
    rounds(policy, [CALM, WILD * 10])
    line = json.loads((tmp_path / "rounds.jsonl").read_text())
    assert line["alarm"] == [False, True]
    assert line["alarm_limit"] == [0.3, 0.3]
    assert line["alarm_reason"][0] is None
    other = Policy()
    with pytest.raises(KeystoneError, match="cannot read"):
        attach_with_log(other, keystone.Spec("medoid", 16), {"KEYSTONE_ALARM": str(tmp_path / "none.json")})
    assert keystone.attached(other) is None


def test_it_is_public_and_loads_what_calibrate_writes(tmp_path):
    make().calibration.save(tmp_path / "alarm.json")
    alarm = keystone.Alarm.load(tmp_path / "alarm.json")
    assert alarm.calibration == make().calibration
    assert "dispersion high" in repr(alarm)
    (tmp_path / "alarm.json").write_text("{")
    with pytest.raises(KeystoneError, match="is not JSON"):
        keystone.Alarm.load(tmp_path / "alarm.json")
