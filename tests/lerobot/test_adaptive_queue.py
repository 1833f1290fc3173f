"""LeRobot's ``select_action`` with an adaptive horizon: its queue is cut where the candidates part."""

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.sample.queues import action_queues
from tiny import POLICIES, batch, build


@pytest.mark.parametrize("name", ["smolvla", "pi05", "diffusion"])
def test_the_queue_is_cut_and_left_alone_without_it(name):
    policy = build(name)
    most, events = policy.config.n_action_steps, []
    observation = batch(name, batch_size=2, seed=0)

    def steps_until_the_next_round(execute):
        handle.execute = execute
        policy.reset()
        events.clear()
        for taken in range(2 * most):
            policy.select_action(dict(observation))
            if len(events) == 2:
                return taken
        raise AssertionError("no second round")

    handle = keystone.attach(policy, "core-mean:k=4", seed=0)
    handle.subscribe(events.append)
    assert steps_until_the_next_round(None) == most
    assert steps_until_the_next_round("auto:1") == most
    assert steps_until_the_next_round("auto:0") == 1
    assert steps_until_the_next_round(f"2..{most}:0") == 2
    agreed = steps_until_the_next_round("auto:0.6")
    assert agreed == events[0].selection.agreed_steps.min()  # the first row to part decides
    assert steps_until_the_next_round(None) == most
    keystone.detach(policy)
    assert type(policy) is type(build(name))


@pytest.mark.parametrize("name", ["groot", "xvla", "evo1", "eo1"])
def test_others_have_a_queue_that_can_be_cut(name):
    assert action_queues(build(name))


def test_the_chunk_itself_stays_whole():
    policy = build("diffusion")
    handle = keystone.attach(policy, "core-mean:k=4,execute=auto:0", seed=0)
    chunk = POLICIES["diffusion"].predict(policy, batch("diffusion", batch_size=1, seed=0))
    assert chunk.shape[1] == policy.config.n_action_steps
    assert handle.last.agreed_steps.tolist() == [1]
    assert torch.isfinite(chunk).all()
    keystone.detach(policy)
