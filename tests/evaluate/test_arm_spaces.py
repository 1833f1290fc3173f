"""What counts in distances, as an arm says."""

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.policies import load_agent
from toy import save_random_flow


def selection_of(folder, arm):
    policy = load_agent(str(save_random_flow(folder, action_dim=3))).policy
    handle = keystone.attach(policy, arm, check=False)
    chosen = []
    handle.subscribe(chosen.append)
    with handle.seeded(3):
        policy.sample(policy.encode(torch.zeros(1, 3)), torch.randn(1, 6, 3))
    return chosen[0].candidates[0].numpy(), handle.last


def lower_median(candidates, steps):
    """Of the distances between candidates over their first steps."""
    flat = candidates[:, :steps].reshape(len(candidates), -1).astype(np.float64)
    distances = np.linalg.norm(flat[:, None] - flat[None], axis=2)
    return np.float32(np.quantile(distances[np.triu_indices(len(flat), 1)], 0.5, method="lower"))


def test_the_executed_steps_or_the_whole_chunk(tmp_path):
    for arm, steps in (("medoid:k=8", 3), ("medoid:k=8,window=chunk", 6)):
        candidates, selection = selection_of(tmp_path, arm)
        assert selection.median_distance.item() == lower_median(candidates, steps)


def test_whoever_calls_the_policy_may_execute_fewer_steps_or_more_up_to_the_chunk(tmp_path):
    policy = load_agent(str(save_random_flow(tmp_path, action_dim=3))).policy
    for given, steps in ((2, 2), (5, 5)):  # the policy itself would execute three, of six
        handle = keystone.attach(policy, k=8, rule="medoid", execute=given, seed=1)
        chosen = []
        handle.subscribe(chosen.append)
        policy.sample(policy.encode(torch.zeros(1, 3)), torch.randn(1, 6, 3))
        expected = lower_median(chosen[0].candidates[0].numpy(), steps)
        assert handle.last.median_distance.item() == pytest.approx(expected, rel=1e-6)
        keystone.detach(policy)
    keystone.attach(policy, k=8, execute=30)
    with pytest.raises(keystone.KeystoneError, match="execute=30: the policy's chunks have 6 steps"):
        policy.sample(policy.encode(torch.zeros(1, 3)), torch.randn(1, 6, 3))


def test_a_gripper_is_open_or_closed(tmp_path):
    candidates, selection = selection_of(tmp_path, "mean:k=8,gripper=2")
    _, plain = selection_of(tmp_path, "mean:k=8")
    closed = candidates[..., 2] > 0
    majority = closed.mean(0) >= 0.5
    made = selection.chunk[0].numpy()
    np.testing.assert_array_equal(made[:, 2] > 0, majority)
    np.testing.assert_allclose(made[:, :2], plain.chunk[0].numpy()[:, :2], atol=1e-6)
    votes = keystone.select(candidates, "mean", keystone.ActionSpace(dims=3, steps=3, gripper={2: 0.0}))
    np.testing.assert_allclose(made, votes.chunk, atol=1e-6)
