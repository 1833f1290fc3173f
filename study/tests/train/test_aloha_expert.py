"""The two-armed demonstrator: it hands the cube over, also after it missed it, and depends on nothing but the attempt."""

import numpy as np
import pytest

from keystone_robotics.environments.aloha import AlohaEnv
from keystone_study.train import aloha_insertion, aloha_transfer
from keystone_study.train.aloha_arms import Kinematics
from keystone_study.train.demonstration import Demonstration
from keystone_study.train.experts import find_expert
from keystone_study.train.flow_recipe import FlowRecipe

ALOHA = find_expert("aloha")


def same(one: Demonstration, other: Demonstration) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_demonstration_hands_the_cube_over_and_can_be_repeated():
    first = ALOHA.demonstrate("transfer-cube", "mixed", 0, 1)
    assert first.success
    assert len(first.actions) < ALOHA.benchmark.max_steps("transfer-cube")
    assert np.abs(first.actions).max() < 2.0  # no joint winds up to its limit
    ALOHA.demonstrate("transfer-cube", "clean", 0, 0)
    assert same(first, ALOHA.demonstrate("transfer-cube", "mixed", 0, 1))


def test_a_demonstration_puts_the_peg_into_the_socket():
    demonstration = ALOHA.demonstrate("insertion", "mixed", 0, 1)
    assert demonstration.success
    assert len(demonstration.actions) < ALOHA.benchmark.max_steps("insertion")
    assert np.abs(demonstration.actions).max() < 2.2


@pytest.mark.parametrize(("script", "name"), [(aloha_transfer, "GRASP"), (aloha_insertion, "DEEP")])
def test_stored_demonstrations_of_another_script_are_not_taken_for_its_own(script, name, monkeypatch):
    before = ALOHA.describe("mixed")
    assert ALOHA.describe("mixed") == before
    monkeypatch.setattr(script, name, getattr(script, name) * 1.01)
    assert ALOHA.describe("mixed") != before


def test_a_policy_learns_joints_relative_to_where_they_are_and_grippers_as_they_are():
    demonstration = ALOHA.demonstrate("transfer-cube", "clean", 0, 0)
    recipe = FlowRecipe([demonstration], ALOHA, 0)
    assert recipe.module.config.relative == (0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12)
    assert recipe.module.config.predicts == "chunk"  # of 700 numbers, more than the network is wide
    assert (recipe.module.config.horizon, recipe.module.config.n_action_steps) == (50, 25)
    assert np.abs(recipe._chunks[:, 0, 0].numpy()).max() < 0.3
    assert set(np.unique(recipe._chunks[..., 6].numpy())) == {0.0, 1.0}


def test_inverse_kinematics_finds_a_pose_that_joints_have():
    env = AlohaEnv()
    env.reset(seed=0)
    for arm in ("left", "right"):
        kinematics = Kinematics(env.physics, arm)
        start = np.array([0.1, -0.9, 1.1, 0.1, -0.3, 0.0])
        tip, turn = kinematics.pose(start + 0.1)
        joints = start
        for _ in range(10):
            joints = kinematics.solve(joints, tip, turn)
        found, turned = kinematics.pose(joints)
        np.testing.assert_allclose(found, tip, atol=2e-3)
        np.testing.assert_allclose(turned, turn, atol=2e-2)
    env.close()
