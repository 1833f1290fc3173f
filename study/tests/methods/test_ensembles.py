"""Ensembles over time against a reference that is written out, with episodes that begin and end in one batch."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from keystone_robotics.errors import KeystoneError
from keystone_study.methods import with_method
from keystone_study.methods.ensembles import ENSEMBLES, EnsembleAgent, adaptive_weights, temporal_weights
from keystone_study.policies.flow_agent import FlowAgent
from toy import save_random_flow

HORIZON = 5


class Scripted(EnsembleAgent):
    """The policy's chunks are given: one for every observation, relative to the robot in the dimensions of the policy."""

    @staticmethod
    def made(folder, method, relative):
        save_random_flow(folder, horizon=HORIZON, relative=relative)
        agent = with_method(str(folder), method)
        agent.__class__ = Scripted
        return agent


@pytest.fixture
def scripted(monkeypatch):
    def plan(self, histories, tasks):
        now = [history[-1] for history in histories]
        return self._absolute(np.stack([one["chunk"] for one in now]).copy(), now)

    monkeypatch.setattr(FlowAgent, "plan", plan)


def observations(random, count, dims=2):
    return [
        {
            "chunk": random.normal(size=(HORIZON, dims)).astype(np.float32),
            "agent_pos": random.normal(size=dims).astype(np.float32),
        }
        for _ in range(count)
    ]


def reference(seen, method, relative):
    """The action of the last of the observations of an episode, as the papers describe it, in plain loops."""
    window = {"temporal-ensemble": HORIZON, "adaptive-ensemble": min(7, HORIZON)}[method]
    now, rows = len(seen) - 1, []
    for then in range(max(0, now - window + 1), now + 1):
        action = seen[then]["chunk"][now - then].astype(np.float64)
        for dim in relative:
            action[dim] += seen[then]["agent_pos"][dim]
        rows.append(action)
    weights = []
    for i in range(len(rows)):
        if method == "temporal-ensemble":
            weights.append(np.exp(-0.01 * i))
            continue
        here = [np.array([a[d] - (seen[now]["agent_pos"][d] if d in relative else 0) for d in range(2)]) for a in rows]
        cosine = here[i] @ here[-1] / (np.linalg.norm(here[i]) * np.linalg.norm(here[-1]))
        weights.append(np.exp(0.1 * cosine))
    return sum(w * a for w, a in zip(weights, rows, strict=True)) / sum(weights)


@pytest.mark.parametrize("method", ENSEMBLES)
@pytest.mark.parametrize("relative", [(), (0, 1), (1,)])
def test_every_action_is_the_average_of_the_reference(method, relative, scripted, tmp_path):
    agent = Scripted.made(tmp_path / "policy", method, relative)
    random = np.random.default_rng(0)
    lengths = {"short": 3, "long": 11, "late": 6}
    seen = {name: observations(random, length) for name, length in lengths.items()}
    histories = {}
    for step in range(11):
        running = ["late", "short", "long"] if step % 2 else ["long", "late", "short"]  # the order of rows changes
        at = {name: step - 2 if name == "late" else step for name in running}
        running = [name for name in running if 0 <= at[name] < lengths[name]]  # "late" begins when others are under way
        for name in running:
            histories.setdefault(name, deque(maxlen=agent.history)).append(seen[name][at[name]])
        actions = agent.plan([histories[name] for name in running], [""] * len(running))
        assert actions.shape == (len(running), 1, 2)
        for name, action in zip(running, actions[:, 0], strict=True):
            assert_allclose(action, reference(seen[name][: at[name] + 1], method, relative), rtol=1e-4, atol=1e-5)


def test_relative_chunks_are_averaged_in_one_frame(scripted, tmp_path):
    """A robot that moves towards one target plans it anew from every position: the average is the target."""
    agent = Scripted.made(tmp_path / "policy", "temporal-ensemble", (0, 1))
    target, history = np.array([3.0, -2.0], np.float32), deque(maxlen=agent.history)
    for step in range(8):
        position = target * step / 8
        history.append({"chunk": np.tile(target - position, (HORIZON, 1)), "agent_pos": position})
        assert_allclose(agent.plan([history], [""])[0, 0], target, rtol=1e-5)


def test_what_was_planned_for_other_episodes_is_forgotten(scripted, tmp_path):
    agent = Scripted.made(tmp_path / "policy", "temporal-ensemble", ())
    first, second = observations(np.random.default_rng(1), 2)
    agent.plan([[first]], [""])
    assert_allclose(agent.plan([[second]], [""])[0, 0], second["chunk"][0])  # another episode: nothing to average
    assert_allclose(agent.plan([[first, second]], [""])[0, 0], second["chunk"][0])  # its chunk is gone


predictions = st.lists(
    st.tuples(*[st.floats(-10, 10, allow_subnormal=False)] * 3), min_size=1, max_size=16
).map(lambda rows: np.array(rows, np.float64))  # fmt: skip


@given(predictions)
@settings(max_examples=60, deadline=None)
def test_weights_are_positive_and_favour_the_oldest_or_the_like(rows):
    temporal, adaptive = temporal_weights(rows), adaptive_weights(rows)
    assert temporal.shape == adaptive.shape == (len(rows),)
    assert (np.diff(temporal) < 0).all()
    assert (adaptive > 0).all()
    assert (adaptive <= adaptive[-1] + 1e-6).all()  # nothing is more like the newest than itself
    assert_allclose(adaptive_weights(rows, alpha=0.0), 1.0)


def test_it_plans_in_every_step(tmp_path):
    agent = with_method(str(save_random_flow(tmp_path / "policy")), "adaptive-ensemble", alpha="0.2")
    assert agent.execute == 1
    with pytest.raises(KeystoneError, match="plans in every step"):
        agent.execute = 3
    with pytest.raises(KeystoneError, match="did you mean 'alpha'"):
        with_method(str(tmp_path / "policy"), "adaptive-ensemble", alpa="0.2")
