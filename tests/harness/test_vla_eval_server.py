"""Wrapped server classes: who is found, what is chosen for whom, what is told about it."""

import json
import runpy
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import numpy as np
import pytest
import torch
import vla_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonargparse import ArgumentParser
from reach_policy import ReachPolicy
from reach_server import ReachServer
from vla_eval.model_servers import serve
from vla_eval.model_servers.base import SessionContext

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations.vla_eval import wrap_server
from keystone_robotics.integrations.vla_eval.options import ServeOptions, environment_block
from keystone_robotics.monitor import Calibration

Wrapped = wrap_server(ReachServer)
STATES = np.linspace([-1.0, -0.2], [0.5, 0.2], 6, dtype=np.float32)


def session(server, episode, step=0, name="reach"):
    """A session that has begun an episode and is at some step of it."""
    context = SessionContext(f"session {episode}", f"id {episode}")
    context._step = step
    anyio.run(server.on_episode_start, {"task": {"name": name, "episode_idx": episode}}, context)
    return context


def ask(server, *episodes, step=0):
    """What the server answers to these episodes, asked at once."""
    contexts = [session(server, episode, step) for episode in episodes]
    return server.predict_batch([{"state": STATES[episode]} for episode in episodes], contexts)


def test_without_the_argument_a_server_is_as_it_was():
    plain, wrapped = ReachServer(), Wrapped(bias=0.0)
    answers = []
    for server in (plain, wrapped):
        torch.manual_seed(0)
        answers.append(server.predict({"state": STATES[0]}, session(server, 0)))
    np.testing.assert_array_equal(answers[0]["actions"], answers[1]["actions"])
    assert answers[1].keys() == {"actions"}
    assert not hasattr(wrapped, "keystone_k")
    with pytest.raises(AttributeError, match="KeyStone is off"):
        wrapped.keystone_k = 4


def test_k_candidates_come_from_one_call_and_one_encoding():
    server = Wrapped(keystone={"k": 16, "space": {"dims": 2}})
    ask(server, 0)  # the first round is checked against single calls
    server.batches.clear()
    encoded = server._brain.encoded
    answer = server.predict({"state": STATES[0]}, session(server, 0))
    assert server.batches == [1]
    assert server._brain.encoded == encoded + 1
    assert answer["actions"].shape == (8, 2)
    assert answer["keystone"]["k"] == 16
    assert 0 <= answer["keystone"]["index"] < 16
    json.dumps(answer["keystone"])


def test_the_majority_is_chosen():
    directions = {}
    for k in (1, 16):
        server = Wrapped(keystone={"k": k, "seed": 0, "space": {"dims": 2}})
        chunks = [ask(server, 0, step=step)[0]["actions"].mean(0) for step in range(40)]
        directions[k] = np.mean([chunk[0] > 0.9 for chunk in chunks])
    assert 0.5 < directions[1] < 0.85  # 69 % go straight on
    assert directions[16] == 1.0


@pytest.fixture
def spaces(monkeypatch):
    """What counted in the distances of each round."""
    used = []

    def select(candidates, rule, space, **kwargs):
        used.append(space)
        return keystone.select(candidates, rule, space, **kwargs)

    monkeypatch.setattr("keystone_robotics.sample.selector.select", select)
    return used


@pytest.mark.parametrize(
    ("chunk_size", "space", "steps", "dims"),
    [
        (4, None, range(4), 4),
        (None, None, None, None),
        (4, {"dims": 2}, range(4), 2),
        (4, {"dims": 2, "steps": 3}, 3, 2),
    ],
)
def test_the_executed_steps_count(spaces, chunk_size, space, steps, dims):
    ask(Wrapped(chunk_size=chunk_size, keystone={"k": 4, "space": space}), 0)
    (used,) = spaces
    assert (used and used.steps, used and used.dims) == (steps, dims)


@pytest.mark.parametrize("planned", [2, 6])
def test_the_server_knows_how_many_steps_are_executed_whatever_the_policy_plans(spaces, monkeypatch, planned):
    monkeypatch.setattr(ReachPolicy, "config", types.SimpleNamespace(n_action_steps=planned), raising=False)
    ask(Wrapped(chunk_size=4, keystone={"k": 4}), 0)
    assert spaces[0].steps == range(4)


def test_a_server_that_takes_actions_one_by_one_leaves_the_steps_to_the_policy(spaces, monkeypatch):
    monkeypatch.setattr(ReachPolicy, "config", types.SimpleNamespace(n_action_steps=6), raising=False)
    monkeypatch.setattr(ReachServer, "_use_select_action", True, raising=False)  # as vla-eval's LeRobot server says it
    ask(Wrapped(chunk_size=1, keystone={"k": 4}), 0)
    assert spaces[0].steps == range(6)


@pytest.mark.parametrize(("execute", "expected"), [("auto:1", 4), ("auto:0", 1), ("2..3:1", 3), (None, None)])
def test_answers_say_how_many_of_the_servers_steps_to_execute(spaces, execute, expected):
    (answer,) = ask(Wrapped(chunk_size=4, keystone={"k": "3..8:0", "execute": execute, "space": {"dims": 2}}), 0)
    assert answer["keystone"].get("agreed_steps") == expected
    assert answer["keystone"]["drawn"] == 8
    assert len(answer["actions"]) == 8  # the server's own, whole


def test_one_candidate_executes_as_many_steps_as_ever():
    server = Wrapped(chunk_size=4, keystone={"k": 4, "execute": "auto"})
    server.keystone_k = 1
    (answer,) = ask(server, 0)
    assert "keystone" not in answer


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True), st.integers(0, 30))
def test_with_a_seed_an_answer_does_not_depend_on_who_else_asks(episodes, step):
    options = {"k": 8, "seed": 3, "space": {"dims": 2}}
    alone = Wrapped(keystone=options)
    together = ask(Wrapped(keystone=options), *episodes, step=step)
    for episode, answer in zip(episodes, together, strict=True):
        (single,) = ask(alone, episode, step=step)
        np.testing.assert_allclose(answer["actions"], single["actions"], atol=1e-6)
        assert answer["keystone"]["index"] == single["keystone"]["index"]


def test_the_sample_of_k_1_is_the_first_of_sixteen_and_repeats_differ():
    chunks = {
        (k, seed): ask(Wrapped(keystone={"k": k, "seed": seed, "rule": "first"}), 2, step=4)[0]["actions"]
        for k, seed in [(1, 0), (16, 0), (16, 1)]
    }
    np.testing.assert_allclose(chunks[1, 0], chunks[16, 0], atol=1e-6)
    assert np.abs(chunks[16, 0] - chunks[16, 1]).max() > 1e-3


def test_other_episodes_steps_and_tasks_get_other_noise():
    server = Wrapped(keystone={"k": 1, "seed": 0})
    contexts = [session(server, 0), session(server, 1), session(server, 0, step=1), session(server, 0, name="far")]
    answers = server.predict_batch([{"state": STATES[0]}] * 4, contexts)
    assert len({answer["actions"].tobytes() for answer in answers}) == 4


class RowByRow(ReachServer):
    """A batch in name only."""

    def predict_batch(self, obs_batch, ctx_batch):
        return [super(RowByRow, self).predict_batch([obs], [ctx])[0] for obs, ctx in zip(obs_batch, ctx_batch)]


def test_a_batch_that_is_answered_row_by_row(tmp_path):
    options = {"k": 4, "seed": 0, "rounds": str(tmp_path / "rounds.jsonl")}
    looped = ask(wrap_server(RowByRow)(keystone=options), 1, 2, 3)
    batched = ask(Wrapped(keystone={"k": 4, "seed": 0}), 1, 2, 3)
    for one, other in zip(looped, batched, strict=True):
        np.testing.assert_allclose(one["actions"], other["actions"], atol=1e-6)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["episodes"][0]["episode"] for line in lines] == [1, 2, 3]


def test_the_side_file_says_for_whom_what_was_chosen(tmp_path):
    path = tmp_path / "new folder" / "rounds.jsonl"
    server = Wrapped(keystone={"k": 8, "rounds": str(path)})
    answers = ask(server, 4, 5, step=12)
    (line,) = map(json.loads, path.read_text().splitlines())  # written while the server goes on
    assert line["episodes"] == [
        {"task": "reach", "episode": episode, "step": 12, "session": f"session {episode}", "id": f"id {episode}"}
        for episode in (4, 5)
    ]
    assert line["k"] == 8
    for row, answer in enumerate(answers):
        assert answer["keystone"]["index"] == line["index"][row]
        assert answer["keystone"]["sizes"] == line["sizes"][row]


def test_every_episode_is_a_recording_in_rerun(tmp_path):
    columns = pytest.importorskip("view.recordings").columns
    server = Wrapped(keystone=environment_block({"KEYSTONE_K": "4", "KEYSTONE_RERUN": str(tmp_path / "rounds.rrd")}))
    contexts = [session(server, number) for number in (0, 1)]
    for some in (contexts, contexts[::-1], contexts[:1]):
        server.predict_batch([{"state": STATES[0]}] * len(some), some)
    server._keystone_serving._rerun.close()
    rounds = [columns(tmp_path / name, "keystone")["round"] for name in ("rounds.rrd", "rounds_1.rrd")]
    assert rounds == [[0, 1, 2], [0, 1]]


def test_an_alarm_is_in_the_answers_of_its_episode(tmp_path, caplog):
    alarm, log = tmp_path / "alarm.json", tmp_path / "rounds.jsonl"
    Calibration("stac-single", "high", "constant", (1e-9,), 1, 0.05, 19, tasks=("push",)).save(alarm)
    server = Wrapped(keystone={"k": 4, "execute": 4, "space": {"dims": 2}, "alarm": str(alarm), "rounds": str(log)})
    contexts = {number: session(server, number) for number in (0, 1, 2)}

    def answers(*numbers):
        asked = [{"state": STATES[number]} for number in numbers], [contexts[number] for number in numbers]
        return [answer["keystone"]["alarm"] for answer in server.predict_batch(*asked)]

    assert answers(0, 1) == [False, False]
    assert answers(1, 2) == [True, False]  # other rows of the batch, the same episodes
    assert answers(2, 0, 1) == [True, True, True]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["alarm"] for line in lines] == [[False, False], [True, False], [True, True, True]]
    contexts[1] = SessionContext("session 1", "the next episode")
    assert answers(1) == [False]
    assert caplog.text.count("calibrated on 'push': its rate of false alarms is unknown for task 'reach'") == 1


def test_an_alarm_that_cannot_be_read_stops_the_server(tmp_path):
    with pytest.raises(KeystoneError, match="cannot read"):
        Wrapped(keystone={"k": 4, "alarm": str(tmp_path / "none.json")})


def test_what_a_policy_is_asked_outside_predict_is_logged_without_an_episode(tmp_path):
    server = Wrapped(keystone={"k": 4, "rounds": str(tmp_path / "rounds.jsonl")})
    server._brain.act(torch.zeros(1, 2))  # a warm-up, say
    assert "episodes" not in json.loads((tmp_path / "rounds.jsonl").read_text())


def test_more_rounds_than_sessions_are_answered_without_diagnostics():
    class Twice(ReachServer):
        def predict_batch(self, obs_batch, ctx_batch):
            self._brain.act(torch.zeros(1, 2))
            return super().predict_batch(obs_batch, ctx_batch)

    (answer,) = ask(wrap_server(Twice)(keystone={"k": 4, "seed": 0}), 0)
    assert answer.keys() == {"actions"}


def test_k_can_be_changed_between_rounds_and_is_checked_when_it_grows():
    server = Wrapped(keystone={"k": 1, "seed": 0})
    assert "keystone" in ask(server, 0)[0]
    handle = server._keystone_serving.handle
    assert handle.engine.finding.k == 1
    server.keystone_k = 8
    assert ask(server, 0)[0]["keystone"]["k"] == 8
    assert handle.engine.finding.k == 8
    server.keystone_k = 3
    assert (server.keystone_k, ask(server, 0)[0]["keystone"]["k"]) == (3, 3)


def test_k_may_be_found_by_the_second_round(tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path))
    late = wrap_server(LoadsLate)(keystone={"k": "auto"})
    assert late.keystone_k == "auto"
    server = Wrapped(keystone={"k": "auto"})
    ask(server, 0)
    handle = server._keystone_serving.handle
    assert "K=auto" in repr(handle)
    ask(server, 1)
    assert f"K={handle.k}" in repr(handle)  # whether the profile is stored depends on how busy the machine is
    assert server.keystone_k == handle.k


class LoadsLate(ReachServer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        del self._brain

    def predict_batch(self, obs_batch, ctx_batch):
        if not hasattr(self, "_brain"):
            self._brain = ReachPolicy()
        return super().predict_batch(obs_batch, ctx_batch)


def test_a_model_that_is_loaded_for_the_first_observation():
    server = wrap_server(LoadsLate)(keystone={"k": 4})
    server.keystone_k = 6
    assert "keystone" not in ask(server, 0)[0]
    assert ask(server, 0)[0]["keystone"]["k"] == 6


def test_a_late_model_behind_predict_which_asks_predict_batch():
    server = wrap_server(LoadsLate)(keystone={"k": 4})
    assert "keystone" not in server.predict({"state": STATES[0]}, session(server, 0))
    assert server.predict({"state": STATES[0]}, session(server, 0))["keystone"]["k"] == 4


def test_sessions_that_ask_first_at_once_attach_once():
    both_inside = threading.Barrier(2)

    class Slow(LoadsLate):
        def predict_batch(self, obs_batch, ctx_batch):
            answers = super().predict_batch(obs_batch, ctx_batch)
            if len(self.batches) <= 2:
                both_inside.wait(timeout=120)
            return answers

    server = wrap_server(Slow)(keystone={"k": 4})
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(lambda episode: ask(server, episode)[0], range(2)))
    assert [answer.keys() for answer in first] == [{"actions"}] * 2
    assert ask(server, 0)[0]["keystone"]["k"] == 4


class Unknown(ReachServer):
    """Holds something that draws noise, in a way that nobody knows."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._brain = None
        self.tower = types.SimpleNamespace(head=torch.nn.Linear(2, 2))
        self.net = Draws()

    def predict_batch(self, obs_batch, ctx_batch):
        states = torch.as_tensor(np.stack([obs["state"] for obs in obs_batch]))
        return [{"actions": chunk.numpy()} for chunk in self.net.draw(states)]


class Draws(torch.nn.Module):
    def draw(self, states):
        return states[:, None] + torch.randn(len(states), 8, 2)


def test_where_nothing_is_known_everything_that_was_looked_at_is_named():
    with pytest.raises(KeystoneError) as caught:
        wrap_server(Unknown)(keystone={"k": 4})
    message = str(caught.value)
    assert "KeyStoneUnknown holds no supported policy" in message
    assert "Looked at: tower (SimpleNamespace), net (Draws); tower has head (Linear)" in message
    assert "site: _model.sample_actions" in message


def test_a_site_seen_from_the_server():
    server = wrap_server(Unknown)(keystone={"k": 4, "site": "net.draw"})
    assert ask(server, 0, 1)[1]["keystone"]["k"] == 4
    with pytest.raises(KeystoneError, match=r"site='net\.drow'.*did you mean 'draw'"):
        wrap_server(Unknown)(keystone={"k": 4, "site": "net.drow"})


class Refused:
    """A policy that decodes tokens, without a torch module in sight."""

    name = "pi0_fast"

    def predict_action_chunk(self, batch):
        raise AssertionError("never asked")


def test_a_policy_that_is_refused_is_told_at_the_start_whatever_it_is_made_of():
    class Serves(ReachServer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self._brain = Refused()

    with pytest.raises(KeystoneError, match="cannot be attached to pi0_fast"):
        wrap_server(Serves)(keystone={"k": 4})


def test_a_server_that_never_loads_a_model_says_so_when_it_is_asked():
    class Empty(ReachServer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self._brain = None

        def predict_batch(self, obs_batch, ctx_batch):
            return [{"actions": np.zeros((8, 2))} for _ in obs_batch]

    server = wrap_server(Empty)(keystone={})
    with pytest.raises(KeystoneError, match="Looked at: nothing"):
        ask(server, 0)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"rulle": "medoid"}, "there is no option 'rulle': did you mean 'rule'"),
        ({"sites": "a"}, "did you mean 'site'"),
        ({"k": 0}, "k=0: expected a whole number, 1 or more"),
        ({"k": "four"}, "k='four': expected a whole number"),
        ({"rule": "mediod"}, "unknown rule 'mediod': did you mean 'medoid'"),
        ({"rule": "medoid", "tau": 0.5}, "rule 'medoid' has no parameter 'tau'"),
        ({"rule": "coherent"}, "looks back at the previous chunk"),
        ({"metric": "l3"}, "l3"),
        ({"space": {"dim": 7}}, "space has no 'dim': did you mean 'dims'"),
        ({"space": 7}, "space=7: expected an ActionSpace, or its arguments"),
        ({"site": 3}, "site=3: expected text"),
        ({"max_message_mb": 0}, "max_message_mb=0: expected a number above 0, at most 2000"),
        ({"token_file": "/nowhere/token"}, "token file /nowhere/token cannot be read"),
        ([16], "is not a block of options"),
    ],
)
def test_wrong_options_are_told_before_a_model_is_loaded(monkeypatch, block, message):
    monkeypatch.setattr(ReachServer, "__init__", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(KeystoneError, match=message):
        Wrapped(keystone=block)


def test_options_go_over_others():
    below = {"k": 4, "rule": "density", "neighbours": 3, "space": {"dims": 7}, "rounds": "a", "site": "model.sample"}
    options = ServeOptions.parse({"rule": "keystone", "tau": 0.5, "rounds": "b"}, below)
    assert options.block() == {
        "rule": "keystone", "k": 4, "tau": 0.5, "space": {"dims": 7}, "rounds": "b", "site": "model.sample",
    }  # fmt: skip
    assert ServeOptions.parse(options.block()) == options


def test_what_is_no_server_class_is_refused():
    with pytest.raises(KeystoneError, match="expected a subclass of vla_eval's ModelServer"):
        wrap_server(dict)
    assert wrap_server(Wrapped) is Wrapped


SERVERS = Path(vla_eval.__file__).parent / "model_servers"
SCRIPTS = sorted(path for path in SERVERS.rglob("*.py") if "    run_server(" in path.read_text())


def test_vla_eval_has_the_servers_that_we_know():
    assert {"groot", "xvla", "starvla", "lerobot", "pi0", "molmobot"} <= {path.stem for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(SERVERS).with_suffix("").as_posix())
def test_every_server_of_vla_eval_takes_the_argument(monkeypatch, script):
    if script.stem == "starvla":  # the one that imports more than vla-eval brings: a function, for its answers
        euler = types.SimpleNamespace(euler2axangle=None)
        monkeypatch.setitem(sys.modules, "transforms3d", types.SimpleNamespace(euler=euler))
        monkeypatch.setitem(sys.modules, "transforms3d.euler", euler)
    served = []
    monkeypatch.setattr(serve, "run_server", served.append)
    runpy.run_path(str(script), run_name="__main__")

    def arguments(server_class):
        parser = ArgumentParser()
        parser.add_class_arguments(server_class, nested_key="args", fail_untyped=False, sub_configs=True)
        return {action.dest for action in parser._actions}

    (server_class,) = served
    assert arguments(wrap_server(server_class)) == arguments(server_class) | {"args.keystone"}
