"""The compact flow-matching policy: on disk and back, and K candidates that are K single calls."""

import json

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.policies import load_agent
from keystone_robotics.sample.noise import initial_noise
from keystone_study.policies import SHIPPED
from keystone_study.policies.flow import FlowConfig, FlowPolicy, load_flow, save_flow
from keystone_study.policies.flow_agent import FlowAgent
from toy import save_random_flow


def test_shipped_weights_stay_small():
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 25e6


@pytest.fixture
def policy(tmp_path):
    return load_flow(save_random_flow(tmp_path / "policy", relative=(0,)))


def test_on_disk_and_back(tmp_path):
    torch.manual_seed(0)
    policy = FlowPolicy(FlowConfig(3, 2, horizon=6, n_action_steps=3, relative=(1,), width=16))
    torch.nn.init.normal_(policy.leave.weight, std=0.3)
    policy.observation_mean += torch.tensor([1.0, -2.0, 3.0])
    policy.action_std *= 0.1
    save_flow(policy, tmp_path)
    again = load_flow(tmp_path)
    assert again.config == policy.config
    assert not again.training
    assert not any(weight.requires_grad for weight in again.parameters())
    for name, value in policy.state_dict().items():
        assert again.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    observation, noise = torch.randn(4, 3), torch.randn(4, 6, 2)
    with torch.no_grad():
        expected = policy.sample(policy.encode(observation), noise)
    torch.testing.assert_close(again.sample(again.encode(observation), noise), expected, rtol=0.02, atol=0.005)


@pytest.fixture
def seeing(tmp_path):
    """A policy for images of 32 x 32 pixels and two numbers beside them."""
    torch.manual_seed(0)
    policy = FlowPolicy(FlowConfig(2, 2, horizon=6, n_action_steps=3, relative=(0, 1), width=16, blocks=1, image=32))
    torch.nn.init.normal_(policy.leave.weight, std=0.3)
    save_flow(policy, tmp_path)
    return load_flow(tmp_path)


def test_what_is_seen_decides_and_is_encoded_once_for_all_candidates(seeing):
    agent = FlowAgent(seeing)
    observation = agent.example()
    assert observation["pixels"].shape == (32, 32, 3)
    looks = []
    seeing.look.register_forward_hook(lambda module, inputs, output: looks.append(len(output)))
    handle = keystone.attach(seeing, k=5, check="all")
    plans = []
    for brightness in (0, 255, 255):
        observation["pixels"][:, 16:] = brightness
        looks.clear()
        with handle.seeded(3):
            plans.append(agent.plan([[observation]], ["reach"]))
    assert looks == [1]  # the rounds before it are checked, with single calls
    assert np.abs(plans[0] - plans[1]).max() > 1e-3
    np.testing.assert_array_equal(plans[1], plans[2])
    with pytest.raises(KeystoneError, match="takes agent_pos and pixels, and the environment gives no pixels"):
        agent.plan([[{"agent_pos": np.zeros(2), "environment_state": np.zeros(18)}]], ["reach"])


def test_a_predicted_chunk_is_reached_by_a_network_narrower_than_the_noise():
    """Sampling subtracts all of the noise, whatever the network is: untrained, it predicts the mean of all chunks."""
    config = FlowConfig(3, 4, horizon=10, width=8, blocks=1, predicts="chunk")
    policy = FlowPolicy(config)
    policy.action_mean += 5.0
    observation, noise = torch.zeros(2, 3), torch.randn(2, 10, 4)
    for steps in (1, 2, 10):
        policy.num_inference_steps = steps
        with torch.no_grad():
            chunk = policy.sample(policy.encode(observation), noise)
        torch.testing.assert_close(chunk, torch.full((2, 10, 4), 5.0), rtol=0, atol=1e-5)
    with pytest.raises(KeystoneError, match="predicts='speed': expected velocity or chunk"):
        FlowConfig(3, 4, predicts="speed")


def test_rows_do_not_depend_on_each_other(policy):
    observation, noise = torch.randn(5, 3), torch.randn(5, 6, 2)
    together = policy.sample(policy.encode(observation), noise)
    assert together.shape == (5, 6, 2)
    for row in range(5):
        alone = policy.sample(policy.encode(observation[row : row + 1]), noise[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)


def test_candidates_are_single_calls(policy):
    observation = torch.randn(3, 3)
    rounds = []
    handle = keystone.attach(policy, k=5, check="all")
    handle.subscribe(rounds.append)
    with handle.seeded([1, 2, 3]):
        chunk = policy(observation)
    keystone.detach(policy)
    noise = initial_noise([1, 2, 3], 5, (6, 2)).unflatten(0, (3, 5))
    for j in range(5):
        expected = policy.sample(policy.encode(observation), noise[:, j])
        torch.testing.assert_close(rounds[0].candidates[:, j], expected, rtol=1e-4, atol=1e-5)
    index = rounds[0].selection.index
    torch.testing.assert_close(chunk, rounds[0].candidates[torch.arange(3), torch.as_tensor(np.asarray(index))])


def test_relative_dimensions_begin_where_the_robot_is(policy):
    agent = FlowAgent(policy)
    state = np.array([0.3, -0.2, 0.0], np.float32)
    plans = []
    for position in ([0.0, 0.0], [10.0, 20.0]):
        torch.manual_seed(0)
        plans.append(agent.plan([[{"environment_state": state, "agent_pos": np.array(position)}]], ["reach"])[0])
    np.testing.assert_allclose(plans[1] - plans[0], np.tile([10.0, 0.0], (6, 1)), atol=1e-5)


def test_execute_is_what_the_rule_looks_at(policy):
    agent = FlowAgent(policy)
    assert agent.execute == 3
    agent.execute = 2
    assert (agent.execute, policy.config.n_action_steps, policy.config.horizon) == (2, 2, 6)
    with pytest.raises(KeystoneError, match="execute=7: this policy plans 6 steps"):
        agent.execute = 7


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"nothing"),
        lambda folder: change(folder, width=32),
        lambda folder: change(folder, colour="red"),
        lambda folder: change(folder, relative=3),
    ],
)
def test_a_folder_that_cannot_be_loaded(tmp_path, spoil):
    folder = save_random_flow(tmp_path / "policy")
    spoil(folder)
    with pytest.raises(KeystoneError, match=r"policy cannot be loaded"):
        load_agent(str(folder))


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
