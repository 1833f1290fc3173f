"""openpi's own client and broker, over a real socket, with a policy that KeyStone is attached to."""

import json
import logging
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
import torch
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from openpi_server import serving
from openpi_toys import HORIZON, REAL_DIMS, JaxModel, Policy, TorchModel, observation

import keystone_robotics as keystone
from keystone_robotics.integrations.openpi import wrap_policy
from keystone_robotics.integrations.openpi_warm_up import synthetic_inputs, warm_up
from keystone_robotics.monitor import Calibration
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import ServedMessages, load_served
from keystone_robotics.serve.server import running
from keystone_robotics.serve.service import Service


@pytest.fixture
def policy(request):
    """An attached policy; of PyTorch, unless a test asks for both frameworks."""
    return wrap_policy(Policy(getattr(request, "param", TorchModel)()), k=8, execute=3)


both_frameworks = pytest.mark.parametrize("policy", [TorchModel, JaxModel], indirect=True)


@both_frameworks
def test_stock_client_gets_a_chosen_chunk_and_plain_diagnostics(policy):
    rounds = []
    policy.handle.subscribe(rounds.append)
    with serving(policy) as port:
        client = WebsocketClientPolicy("127.0.0.1", port)
        assert client.get_server_metadata() == {"robot": "toy"}
        reply = client.infer(observation())
    chosen = rounds[0].candidates[0, reply["keystone"]["index"], :, :REAL_DIMS]
    np.testing.assert_array_equal(reply["actions"], chosen)
    assert reply["actions"].shape == (HORIZON, REAL_DIMS)
    assert reply["keystone"]["k"] == 8
    assert sum(reply["keystone"]["sizes"]) == 8
    assert reply["keystone"]["path"] in ("fast", "plain")
    assert 0 < reply["keystone"]["consensus"] <= 1
    assert reply["policy_timing"] == {"infer_ms": 1.0}
    assert json.loads(json.dumps(reply["keystone"])) == reply["keystone"]  # nothing but Python's own numbers


@both_frameworks
def test_a_request_may_bring_its_seed_which_the_policy_does_not_see(policy):
    with serving(policy) as port:
        client = WebsocketClientPolicy("127.0.0.1", port)
        seeded = [client.infer({**observation(), "keystone_seed": seed}) for seed in (7, np.int64(7), np.array(7), 8)]
        free = [client.infer(observation()) for _ in range(2)]
    assert policy._policy.seen == sorted(observation())
    actions = [reply["actions"].tobytes() for reply in seeded]
    assert actions[0] == actions[1] == actions[2] != actions[3]
    assert free[0]["actions"].tobytes() != free[1]["actions"].tobytes()
    # The reply names the seed that the noise follows from, so that the round can be drawn again here.
    assert seeded[0]["keystone"]["seed"] == seeded[2]["keystone"]["seed"] != seeded[3]["keystone"]["seed"]


def test_a_wrong_seed_is_answered_with_what_was_expected(policy):
    with serving(policy) as port:
        client = WebsocketClientPolicy("127.0.0.1", port)
        with pytest.raises(RuntimeError, match=r"keystone_seed='seven' in the observation: expected a whole number"):
            client.infer({**observation(), "keystone_seed": "seven"})


def test_diagnostics_survive_the_action_chunk_broker(policy):
    with serving(policy) as port:
        broker = ActionChunkBroker(WebsocketClientPolicy("127.0.0.1", port), action_horizon=3)
        steps = [broker.infer(observation()) for _ in range(4)]
    assert all(step["actions"].shape == (REAL_DIMS,) for step in steps)
    assert steps[0]["keystone"] == steps[1]["keystone"] == steps[2]["keystone"]
    assert policy.handle.stats["rounds"] == 2  # the fourth step asked for another chunk
    assert steps[3]["keystone"]["seed"] != steps[2]["keystone"]["seed"]


def test_requests_at_once_each_get_their_own_round(policy):
    with serving(policy) as port, ThreadPoolExecutor(4) as pool:

        def ask(seed):
            return WebsocketClientPolicy("127.0.0.1", port).infer({**observation(seed), "keystone_seed": seed})

        together = list(pool.map(ask, range(8)))
        alone = [ask(seed) for seed in range(8)]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one["actions"], other["actions"])
        assert one["keystone"]["seed"] == other["keystone"]["seed"]


def test_one_candidate_says_so(policy):
    policy.handle.k = 1
    assert policy.infer(observation())["keystone"] == {"k": 1}


def test_only_executed_steps_count():
    inner = Policy(JaxModel())
    policy = wrap_policy(inner, k=16, execute=2, rule="medoid", seed=0)
    rounds = []
    policy.handle.subscribe(rounds.append)
    policy.infer(observation())
    expected = keystone.select(rounds[0].candidates[0, :, :2, :REAL_DIMS], "medoid")
    assert rounds[0].selection.index.item() == expected.index
    with pytest.raises((TypeError, ValueError), match="execute"):
        wrap_policy(Policy(JaxModel()), execute=0)


@pytest.mark.parametrize(("execute", "expected"), [("2..3:0", 2), ("2..3:1", 3), (3, None)])
def test_replies_say_how_many_steps_to_execute(execute, expected):
    policy = wrap_policy(Policy(JaxModel()), "medoid:k=3..8:1", execute=execute, seed=0)
    reply = policy.infer(observation())["keystone"]
    assert reply.get("agreed_steps") == expected
    assert (reply["k"], reply["drawn"]) == (3, 3)
    assert json.loads(json.dumps(reply)) == reply


def test_steps_and_dimensions_may_be_said_together():
    policy = wrap_policy(Policy(JaxModel()), k=16, execute=2, space=keystone.ActionSpace(dims=3), rule="medoid", seed=0)
    rounds = []
    policy.handle.subscribe(rounds.append)
    policy.infer(observation())
    assert rounds[0].selection.index.item() == keystone.select(rounds[0].candidates[0, :, :2, :3], "medoid").index


def test_a_rule_that_looks_back_is_refused_before_anything_is_attached():
    inner = Policy(JaxModel())
    with pytest.raises(keystone.KeystoneError, match=r"coherent looks back.*many episodes at once"):
        wrap_policy(inner, k=4, rule="coherent", share=0.5)
    assert type(inner) is Policy


def test_reset_reaches_the_policy(monkeypatch):
    calls = []
    monkeypatch.setattr(Policy, "reset", lambda self: calls.append(self))
    inner = Policy(JaxModel())
    wrap_policy(inner, k=4).reset()
    assert calls == [inner]


# ---- before the first request


@both_frameworks
def test_a_warm_up_leaves_nothing_behind_but_what_it_is_for(policy, caplog):
    inner, rounds = policy._policy, []
    policy.handle.subscribe(rounds.append)
    state = dict(vars(inner)), torch.get_rng_state()
    with caplog.at_level(logging.INFO, "keystone"):
        assert policy.warm_up()
        assert caplog.text.count("self-check passed") == 1
        inner.seen.clear()  # the toy's own diary
        assert (dict(vars(inner)), policy.handle.last, policy.handle.stats["rounds"]) == (state[0], None, 0)
        assert torch.equal(torch.get_rng_state(), state[1])
        assert rounds == []
        policy.infer(observation())
    assert rounds[0].number == 0
    assert caplog.text.count("self-check passed") == 1


@pytest.mark.parametrize(("model", "k"), [(TorchModel, 1), (JaxModel, 4)])
def test_replies_are_the_same_with_and_without_a_warm_up(model, k):
    replies = []
    for warm in (True, False):
        torch.manual_seed(0)
        policy = wrap_policy(Policy(model()), k=k)
        if warm:
            policy.warm_up()
        replies.append(policy.infer(observation())["actions"])
    np.testing.assert_array_equal(*replies)


def test_a_real_observation_of_the_same_layout_compiles_nothing_more(monkeypatch):
    policy = wrap_policy(Policy(JaxModel()), k=4, seed=0)
    assert policy.warm_up()
    real = jax.tree.map(np.ones_like, synthetic_inputs(policy._policy._model, share=1.0))
    monkeypatch.setattr(JaxModel, "traced", 0)
    policy.infer(real)
    assert JaxModel.traced == 0


def test_a_policy_that_wants_other_inputs_is_served_without_a_warm_up(policy, caplog):
    inner = policy._policy
    before, own = inner._input_transform, inner.infer
    inner.infer = lambda obs: own(obs) if "image" in obs else {}["depth"]
    with caplog.at_level(logging.WARNING, "keystone"):
        assert not policy.warm_up()
    assert "failed on a synthetic observation (KeyError: 'depth')" in caplog.text
    assert inner._input_transform is before
    assert policy.infer(observation())["keystone"]["k"] == 8


def test_another_object_than_openpis_policy_is_left_as_it_is(caplog):
    model = TorchModel()
    before = set(vars(model))
    handle = keystone.attach(model, k=4, space=keystone.ActionSpace(dims=REAL_DIMS))
    with caplog.at_level(logging.WARNING, "keystone"):
        assert not warm_up(handle)
    assert "expected openpi's Policy, not a KeyStoneTorchModel" in caplog.text
    keystone.detach(model)
    assert set(vars(model)) == before


# ---- keystone serve


@pytest.mark.parametrize("model", [TorchModel, JaxModel])
def test_keystone_serve_warms_up_openpis_policy_and_answers_its_client(model, caplog):
    with caplog.at_level(logging.INFO, "keystone"):
        served = Model(ServedMessages("openpi", Policy(model())), keystone.Spec.parse("medoid:k=4,execute=2"))
        assert served.warm_up()
        assert caplog.text.count("self-check passed") == 1
        with running(Service(served), {"openpi": 0}) as ports:
            client = WebsocketClientPolicy("127.0.0.1", ports["openpi"])
            assert client.get_server_metadata()["robot"] == "toy"
            replies = [client.infer({**observation(), "keystone_seed": 7}) for _ in range(2)]
    assert caplog.text.count("self-check passed") == 1
    assert served.served.policy.seen == sorted(observation())
    np.testing.assert_array_equal(replies[0]["actions"], replies[1]["actions"])
    assert replies[0]["actions"].shape == (HORIZON, REAL_DIMS)
    assert (replies[0]["keystone"]["k"], replies[0]["policy_timing"]) == (4, {"infer_ms": 1.0})


def test_openpis_policy_is_loaded_by_name(tmp_path, monkeypatch):
    """openpi's modules, of our own making, as `trained_policy` calls them."""
    package = tmp_path / "openpi"
    create = textwrap.dedent("""
        from openpi_toys import Policy, TorchModel
        def create_trained_policy(config, checkpoint, **more):
            made = Policy(TorchModel())
            made.given = config, checkpoint, more
            return made
    """)
    for folder, name, text in (
        ("policies", "policy_config", create),
        ("training", "config", "def get_config(name):\n    return name.upper()\n"),
    ):
        (package / folder).mkdir(parents=True)
        (package / folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    name = "keystone_robotics.integrations.openpi:trained_policy"
    served = load_served(f"{name}?config=pi05_libero&checkpoint=here", device="cpu")
    assert served.policy.given == ("PI05_LIBERO", "here", {"default_prompt": None, "pytorch_device": "cpu"})
    for module in [one for one in sys.modules if one.partition(".")[0] == "openpi"]:
        del sys.modules[module]


def test_without_openpi_the_error_says_so():
    with pytest.raises(keystone.KeystoneError, match="openpi cannot be imported here"):
        load_served("keystone_robotics.integrations.openpi:trained_policy?config=a&checkpoint=b")


def test_an_alarm_is_in_the_reply_and_clients_have_their_own(policy):
    alarm = keystone.Alarm(Calibration("stac-single", "high", "constant", (1e-9,), 1, 0.05, 19))
    policy.handle.subscribe(alarm)
    with serving(policy) as port:
        clients = [WebsocketClientPolicy("127.0.0.1", port) for _ in range(2)]
        replies = [
            client.infer({**observation(), "keystone_episode": name})["keystone"]
            for client, name in ((clients[0], "a"), (clients[1], 7), (clients[0], "a"), (clients[1], np.int64(8)))
        ]
        free = [clients[0].infer(observation())["keystone"] for _ in range(2)]
        policy.reset()
        free.append(clients[0].infer(observation())["keystone"])
    assert policy._policy.seen == sorted(observation())
    assert [reply["alarm"] for reply in replies] == [False, False, True, False]
    assert replies[2]["alarm_reason"].startswith("round 1: stac-single")
    assert set(alarm.active) == {"a"}
    assert [reply["alarm"] for reply in free] == [False, True, False]  # without a name, until the reset
    assert json.loads(json.dumps(replies)) == replies
