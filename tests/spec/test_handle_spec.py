"""`Handle.spec`: what is in force, also after changes."""

import pytest
import torch
from torch import nn

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, Spec


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_inference_steps = 4

    def encode(self, observation):
        return observation

    def sample(self, context, noise):
        return context[:, None] + noise


def last(round, back=0):
    return len(round.chunks) - 1 - back


@pytest.mark.parametrize(
    "spec",
    [
        Spec(),
        Spec.parse("core-mean:k=4,temperature=0.8,seed=3,metric=l1,execute=2,share=0.25,fast=false"),
        Spec.parse("medoid:k=auto"),
        Spec(last, 4, params={"back": 1}),
        Spec("first", space=ActionSpace(dims=1, steps=slice(1, 3))),
    ],
)
def test_what_was_given_is_in_force(spec, tmp_path):
    assert keystone.attach(Policy(), spec, profiles=tmp_path).spec == spec


def test_window_and_gripper_are_in_the_space():
    given = Spec.parse("keystone:window=chunk,gripper=1")
    found = keystone.attach(Policy(), given).spec
    assert found.action_space() == given.action_space()
    assert keystone.attach(Policy(), found).spec == found
    assert Spec.parse(str(found)) == found


def test_changes_are_followed():
    policy = Policy()
    handle = keystone.attach(policy, "keystone:k=4,temperature=0.5")
    handle.k, handle.metric, handle.execute = 8, "l1", 3
    handle.rule = keystone.RULES["keystone"](tau=0.5)
    handle.space = ActionSpace(dims=1)
    assert str(keystone.attached(policy).spec) == (
        'keystone:k=8,temperature=0.5,metric=l1,execute=3,space={"dims":1},tau=0.5'
    )
    handle.steps = 2
    assert handle.spec.steps == 2


def test_a_rule_that_looks_back_may_be_set_later_and_forgets_at_reset():
    class Resets(Policy):
        def reset(self):
            self.was_reset = True

    def chunks(rule):
        policy = Resets()
        handle = keystone.attach(policy, k=16, seed=0, execute=2, rule=rule)
        if rule != "coherent":
            policy.sample(torch.zeros(1, 2), torch.zeros(1, 6, 2))
            handle.rule = "coherent"
        found = []
        for seed in range(8):
            with handle.seeded(seed):
                found.append(policy.sample(torch.zeros(1, 2), torch.zeros(1, 6, 2)))
            if seed == 4:
                policy.reset()
        assert policy.was_reset
        assert handle.spec.rule == "coherent"
        keystone.detach(policy)
        assert type(policy) is Resets
        return torch.cat(found)

    torch.testing.assert_close(chunks("medoid"), chunks("coherent"))


def test_a_rule_that_looks_back_is_refused_with_an_adaptive_horizon():
    class Policy(torch.nn.Module):
        def act(self):
            return torch.randn(1, 8, 2)

        def reset(self):
            pass

    handle = keystone.attach(Policy(), k=4, site="act", execute="2..8")
    with pytest.raises(ValueError, match="looks back"):
        handle.rule = "coherent"
    assert handle.rule.name == "keystone"
