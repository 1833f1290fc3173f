"""RoboArena's client on the wire, written from its source: a greeting of settings, ``endpoint`` in each message."""

import dataclasses

import numpy as np
import pytest
from openpi_client import msgpack_numpy
from serving import STATE, PointAgent, flow_policy, make_model, serving, state
from test_serve_openpi import expected_chunk
from websockets.sync.client import connect

from keystone_robotics.errors import KeystoneError
from keystone_robotics.serve.address import parse_protocols
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import Interface, ServedMessages
from keystone_robotics.serve.protocols.roboarena import _config
from keystone_robotics.serve.replica import Replica
from keystone_robotics.serve.scheduler import Limits
from keystone_robotics.spec import Spec


@dataclasses.dataclass
class PolicyServerConfig:
    """The fields of RoboArena's, whose client is given the greeting as keywords: any other is an error."""

    image_resolution: tuple | None
    needs_wrist_camera: bool
    n_external_cameras: int
    needs_stereo_camera: bool
    needs_session_id: bool
    action_space: str


class Client:
    """Sends and reads what theirs does."""

    def __init__(self, port):
        self.socket = connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None)
        self.config = PolicyServerConfig(**msgpack_numpy.unpackb(self.socket.recv()))

    def infer(self, observation):
        self.socket.send(msgpack_numpy.packb({**observation, "endpoint": "infer"}))
        response = self.socket.recv()
        if isinstance(response, str):
            raise RuntimeError(response)
        return msgpack_numpy.unpackb(response)

    def reset(self, about):
        self.socket.send(msgpack_numpy.packb({**about, "endpoint": "reset"}))
        return self.socket.recv()


@pytest.fixture(scope="module")
def port():
    with serving("roboarena") as (_, ports):
        yield ports["roboarena"]


def test_the_greeting_has_the_settings_and_a_reply_the_actions(port):
    client = Client(port)
    assert client.config == PolicyServerConfig(None, False, 0, False, True, "joint_position")
    reply = client.infer({STATE: state(1, 2), "prompt": "push", "keystone_seed": 7})
    np.testing.assert_allclose(reply["actions"], expected_chunk((1, 2), 7), rtol=1e-5, atol=1e-6)
    assert reply["keystone"]["k"] == 8
    assert client.reset({"session_id": "38DSA3hd3"}) == "reset successful"


def test_the_policys_state_is_joined_from_arm_and_gripper(port):
    sent = {"observation/joint_position": state(1, 2)[:2], "observation/gripper_position": np.float32([0.0])}
    reply = Client(port).infer({**sent, "observation/cartesian_position": np.zeros(6), "keystone_seed": 7})
    np.testing.assert_allclose(reply["actions"], expected_chunk((1, 2), 7), rtol=1e-5, atol=1e-6)


def test_errors_are_words_and_the_connection_goes_on(port):
    client = Client(port)
    with pytest.raises(RuntimeError, match="the policy takes environment_state"):
        client.infer({})
    for endpoint, words in (("kill", "'kill': expected infer or reset"), (state(1), "'ndarray': expected infer")):
        client.socket.send(msgpack_numpy.packb({"endpoint": endpoint}))
        assert words in client.socket.recv()
    assert client.reset({"keystone_seed": "x"}) == "keystone_seed='x': expected a whole number"
    assert client.infer({STATE: state(1)})["actions"].shape == (6, 2)


def test_a_session_is_an_episode_and_actions_are_those_that_are_executed():
    model = make_model("core-mean:k=8,seed=5,execute=4", Limits(max_batch=4), PointAgent())
    ask = {STATE: state(1), "session_id": "arm 1"}
    with serving("roboarena", model=model) as (_, ports):
        first = Client(ports["roboarena"])
        rounds = [first.infer(ask)["actions"], Client(ports["roboarena"]).infer(ask)["actions"]]
        assert rounds[0].shape == (4, 2)
        first.reset({"session_id": "arm 1"})
        (known,) = model._robots.items()
        assert (known[0].name, known[1].episode, known[1].rounds) == ("arm 1", 1, 0)
    assert not np.allclose(*rounds)


def test_of_a_policys_own_reply_too_the_steps_that_are_executed_are_sent():
    class Policy:
        def infer(self, observation):
            return {"actions": np.zeros((6, 2)), "state": np.zeros(7)}

    served = ServedMessages("mine:policy", Policy(), {})
    served.policy = flow_policy()
    with serving("roboarena", model=Model(Replica(served, Spec.parse("core-mean:k=2,execute=4")))) as (_, ports):
        reply = Client(ports["roboarena"]).infer({"observation/state": state(1)})
    assert (reply["actions"].shape, reply["state"].shape) == ((4, 2), (7,))


def test_cameras_are_asked_for_as_the_policy_names_them():
    image = np.zeros((180, 320, 3), np.uint8)
    inputs = {f"observation.images.{name}": image for name in ("top", "side", "wrist")}
    rename = {
        "observation/exterior_image_0_left": "observation.images.top",
        "observation/exterior_image_1_left": "observation.images.side",
        "observation/wrist_image_left": "observation.images.wrist",
    }
    interface = Interface("droid", inputs, rename=rename, metadata={"action_space": "joint_velocity", "other": 1})
    assert PolicyServerConfig(**_config(interface)) == PolicyServerConfig(
        (180, 320), True, 2, False, True, "joint_velocity"
    )
    assert PolicyServerConfig(**_config(Interface("mine"))).image_resolution == (224, 224)


def test_two_protocols_on_one_port_are_refused():
    with pytest.raises(KeystoneError, match="two protocols on port 8000: give one of them another, as in openpi:8001"):
        parse_protocols("openpi,roboarena")
    assert parse_protocols("openpi,roboarena:8001") == {"openpi": 8000, "roboarena": 8001}
