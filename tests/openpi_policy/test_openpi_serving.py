"""openpi's own client, over a real socket, with a policy of openpi's kind behind `keystone serve`."""

import json
import logging
import sys
import textwrap

import jax
import numpy as np
import pytest
import torch
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from openpi_toys import HORIZON, REAL_DIMS, JaxModel, Policy, TorchModel, observation

import keystone_robotics as keystone
from keystone_robotics.integrations.openpi_inputs import synthetic_input_transform, synthetic_inputs
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import ServedMessages, load_served
from keystone_robotics.serve.replica import Replica
from keystone_robotics.serve.scheduler import Limits
from keystone_robotics.serve.server import running
from keystone_robotics.serve.service import Service

both_frameworks = pytest.mark.parametrize("model", [TorchModel, JaxModel])


def replica_of(model, spec="medoid:k=4,execute=2"):
    return Replica(ServedMessages("openpi", Policy(model())), keystone.Spec.parse(spec))


@both_frameworks
def test_openpis_policy_is_warmed_up_and_its_client_answered(model, caplog):
    with caplog.at_level(logging.INFO, "keystone"):
        served = Model(replica_of(model))
        assert served.warm_up().seconds
        assert caplog.text.count("self-check passed") == 1
        with running(Service(served), {"openpi": 0}) as ports:
            client = WebsocketClientPolicy("127.0.0.1", ports["openpi"])
            assert client.get_server_metadata()["robot"] == "toy"
            seeds = (7, np.int64(7), np.array(7), 8)
            replies = [client.infer({**observation(), "keystone_seed": seed}) for seed in seeds]
            with pytest.raises(RuntimeError, match="keystone_seed='seven': expected a whole number"):
                client.infer({**observation(), "keystone_seed": "seven"})
    assert caplog.text.count("self-check passed") == 1
    assert served.replicas.served.policy.seen == sorted(observation())
    chunks = [reply["actions"].tobytes() for reply in replies]
    assert chunks[0] == chunks[1] == chunks[2] != chunks[3]
    assert replies[0]["actions"].shape == (HORIZON, REAL_DIMS)
    assert (replies[0]["keystone"]["k"], replies[0]["policy_timing"]) == (4, {"infer_ms": 1.0})
    assert json.loads(json.dumps(replies[0]["keystone"])) == replies[0]["keystone"]  # plain numbers


def test_steps_and_dimensions_may_be_said_together():
    replica, rounds = replica_of(JaxModel, "medoid:k=16,execute=2,seed=0"), []
    replica.handle.subscribe(rounds.append)
    replica.served.policy.infer(observation())
    expected = keystone.select(rounds[0].candidates[0, :, :2, :REAL_DIMS], "medoid")
    assert rounds[0].selection.index.item() == expected.index


# ---- before the first request


@both_frameworks
def test_a_warm_up_leaves_nothing_behind_but_what_it_is_for(model, caplog):
    replica, rounds = replica_of(model), []
    inner, handle = replica.served.policy, replica.handle
    handle.subscribe(rounds.append)
    state = dict(vars(inner)), torch.get_rng_state()
    with caplog.at_level(logging.INFO, "keystone"):
        replica.warm_up(Limits())
        assert caplog.text.count("self-check passed") == 1
        inner.seen.clear()  # the toy's own diary
        assert (dict(vars(inner)), handle.last, handle.stats["rounds"]) == (state[0], None, 0)
        assert torch.equal(torch.get_rng_state(), state[1])
        assert rounds == []
        inner.infer(observation())
    assert rounds[0].number == 0
    assert caplog.text.count("self-check passed") == 1


def test_a_real_observation_of_the_same_layout_compiles_nothing_more(monkeypatch):
    replica = replica_of(JaxModel)
    replica.warm_up(Limits(least_k=4))
    policy = replica.served.policy
    real = jax.tree.map(np.ones_like, synthetic_inputs(policy._model, share=1.0))
    monkeypatch.setattr(JaxModel, "traced", 0)
    policy.infer(real)
    assert JaxModel.traced == 0


def test_a_policy_that_wants_other_inputs_says_so_and_is_left_as_it_was():
    replica = replica_of(TorchModel)
    inner = replica.served.policy
    before, own = inner._input_transform, inner.infer
    inner.infer = lambda obs: own(obs) if "image" in obs else {}["depth"]
    with pytest.raises(
        keystone.KeystoneError, match="openpi failed on the observation of its warm-up: KeyError: 'depth'"
    ):
        replica.warm_up(Limits())
    assert inner._input_transform is before


def test_another_object_than_openpis_policy_is_left_as_it_is():
    model = TorchModel()
    before = set(vars(model))
    with pytest.raises(TypeError, match="expected openpi's Policy, not a TorchModel"), synthetic_input_transform(model):
        pass
    assert set(vars(model)) == before


# ---- by name


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
