"""RoboArena's own client, from its source, against `keystone serve`; GR00T's and StarVLA's, where their checkouts are.

Of GR00T only the file with the client is run; what it imports for type hints and its configuration class stand in.
"""

import dataclasses
import importlib
import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "study" / "src"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))
from serving import STATE, serving, state


@dataclasses.dataclass
class ModalityConfig:
    delta_indices: list
    modality_keys: list


def groot_client(folder, path, monkeypatch):
    """The module with a version's client."""
    stand_ins = {
        "gr00t": {}, "gr00t.data": {}, "gr00t.policy": {"__path__": []}, "gr00t.eval": {"__path__": []},
        "gr00t.data.types": {"ModalityConfig": ModalityConfig}, "gr00t.data.dataset": {"ModalityConfig": ModalityConfig},
        "gr00t.data.utils": {"to_json_serializable": dataclasses.asdict},
    }  # fmt: skip
    for name, values in stand_ins.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    for file in (["gr00t/policy/policy.py"] if "policy/" in path else []) + [path]:
        name = file.removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, folder / file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ports():
    with serving("roboarena", "groot", "starvla") as (_, ports):
        yield ports


def test_roboarenas_client(checkout, ports):
    checkout("roboarena")
    from roboarena.policy_client import WebsocketClientPolicy
    from roboarena.policy_server import PolicyServerConfig

    client = WebsocketClientPolicy("127.0.0.1", ports["roboarena"])
    config = PolicyServerConfig(**client.get_server_metadata())
    assert config.needs_session_id
    assert config.n_external_cameras == 0
    reply = client.infer({STATE: state(1), "session_id": "38DSA3hd3", "prompt": "push"})
    assert type(reply) is dict
    assert (reply["actions"].shape, reply["actions"].dtype) == ((6, 2), np.float32)
    with pytest.raises(RuntimeError, match="the policy takes environment_state"):
        client.infer({})
    assert client.reset({"session_id": "38DSA3hd3"}) == "reset successful"


@pytest.mark.parametrize("version", ["Isaac-GR00T-N1.6", "Isaac-GR00T-N1.7"])
def test_groots_policy_client(version, checkout, ports, monkeypatch):
    if version.endswith("7"):
        pytest.importorskip("msgpack_numpy")
    module = groot_client(checkout(version), "gr00t/policy/server_client.py", monkeypatch)
    abstract = {"check_observation", "check_action"}
    client_class = type("Client", (module.PolicyClient,), {name: lambda self, value: None for name in abstract})
    client = client_class(host="127.0.0.1", port=ports["groot"])
    assert client.ping()
    observation = {"video": {}, "state": {"joints": state(1)[None, None]}, "language": {"task": [["push"]]}}
    action, info = client.get_action(observation)
    assert action["action"].shape == (1, 6, 2)
    assert action["action"].dtype == np.float32
    assert info["keystone"][0]["k"] == 8
    assert client.reset() == {}
    assert client.get_modality_config()["action"].delta_indices == list(range(6))
    with pytest.raises(RuntimeError, match="SIGTERM"):
        client.kill_server()


def test_groots_n15_client(checkout, ports, monkeypatch):
    module = groot_client(checkout("Isaac-GR00T-N1.5"), "gr00t/eval/service.py", monkeypatch)
    client = module.ExternalRobotInferenceClient(host="127.0.0.1", port=ports["groot"])
    assert client.ping()
    action = client.get_action({"state.joints": state(1)[None], "annotation.human.task": ["push"]})
    assert action["action.action"].shape == (6, 2)


@pytest.mark.parametrize("version", ["starVLA", "starVLA-eaa51c4"])
def test_starvlas_client(version, checkout, ports, monkeypatch):
    folder = checkout(version)
    for name in [one for one in sys.modules if one.partition(".")[0] == "deployment"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module("deployment.model_server.tools.websocket_policy_client")
    assert Path(module.__file__).is_relative_to(folder)
    client = module.WebsocketClientPolicy("127.0.0.1", ports["starvla"])
    assert client.get_server_metadata()["env"] == "keystone"
    ask = getattr(client, "predict_action", None) or client.infer
    reply = ask({"examples": [{"image": [], "lang": "push", "state": state(1)}]})
    assert reply["ok"]
    assert reply["data"]["actions"].shape == (1, 6, 2)
    client.close()
