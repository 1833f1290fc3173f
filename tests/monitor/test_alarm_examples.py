"""What docs/monitor.md says to do when an alarm rings, and without a simulator, on LeRobot's policies."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.monitor import Alarm, Calibration
from keystone_robotics.sample.queues import action_queues
from tiny import batch, build


def example(function, **names):
    """The names that the page's example with this function defines."""
    blocks = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/monitor.md").read_text(), re.DOTALL)
    (block,) = [one for one in blocks if f"def {function}(" in one]
    exec(block, names)
    return names


@pytest.fixture
def robot():
    """A diffusion policy, which remembers past observations, and an alarm that rings in its second round."""
    policy = build("diffusion")
    policy.reset()
    handle = keystone.attach(policy, "core-mean:k=4", seed=0)
    alarm = Alarm(Calibration("overlap-distance", "high", "constant", (1e-9,), 1, 0.05, 19))
    handle.subscribe(alarm)
    yield policy, handle, alarm, dict(batch("diffusion", batch_size=1, seed=0))
    keystone.detach(policy)


def test_hold_executes_nothing_of_the_chunk_that_rang_and_goes_on_when_somebody_has_looked(robot):
    policy, handle, alarm, observation = robot
    hold = example("hold", policy=policy, handle=handle, alarm=alarm)["hold"]
    last, most = None, policy.config.n_action_steps
    sent = [last := hold(dict(observation), last) for _ in range(most + 3)]
    assert handle.stats["rounds"] == 2  # and none while it holds
    assert all(action is sent[most - 1] for action in sent[most:])
    assert [len(queue) for queue in action_queues(policy)] == [0]
    assert len(policy._queues["observation.state"]) == policy.config.n_obs_steps  # of which `reset` leaves none
    alarm.reset()
    assert hold(dict(observation), last) is not last
    assert handle.stats["rounds"] == 3


def test_replan_early_draws_a_chunk_for_every_step_once_the_alarm_has_rung(robot):
    policy, handle, alarm, observation = robot
    replan_early = example("replan_early", policy=policy, handle=handle, alarm=alarm)["replan_early"]
    most, rounds = policy.config.n_action_steps, []
    for _ in range(most + 3):
        assert torch.isfinite(replan_early(dict(observation))).all()
        rounds.append(handle.stats["rounds"])
    assert rounds == [1] * most + [2, 3, 4]
    assert handle.replan() == 0
    policy.reset()
    policy.select_action(dict(observation))
    assert handle.replan() == most - 1


def test_rules_that_look_back_do_not_after_planning_early():
    """They take it that all steps of the previous chunk were executed."""
    policy = build("diffusion")
    handle = keystone.attach(policy, "coherent:k=4", seed=0)
    policy.select_action(dict(batch("diffusion", batch_size=1, seed=0)))
    assert handle.history is not None
    assert handle.replan() == policy.config.n_action_steps - 1
    assert handle.history is None


def test_an_arm_without_a_simulator_calibrates_on_the_episodes_that_it_runs(tmp_path):
    class Policy(torch.nn.Module):
        spread = 0.1

        def act(self):
            return torch.arange(8.0)[:, None] + self.spread * torch.randn(1, 8, 2)

    policy = Policy()
    handle = keystone.attach(policy, "medoid:k=8,execute=4,gripper=1", site="act", seed=0)
    robot = example("end_episode", handle=handle)

    def run(rounds=5):
        for _ in range(rounds):
            policy.act()

    for number in range(20):
        run()
        robot["end_episode"](success=number != 3)
        if number == 18:
            with pytest.raises(KeystoneError, match="18 successful episodes are too few"):
                robot["write_alarm"](tmp_path / "alarm.json")
    robot["write_alarm"](tmp_path / "alarm.json")
    alarm = Alarm.load(tmp_path / "alarm.json")
    highest = [max(np.nanmean(one[max(0, t - 2) : t + 1]) for t in range(1, 5)) for one in robot["successes"]]
    assert alarm.calibration.limit == pytest.approx((max(highest),))  # of nineteen, for 5 %
    handle.subscribe(alarm)
    run()
    assert alarm.mismatch == ""
    assert not alarm.active
    policy.spread = 2.0
    run()
    assert len(alarm.active) == 1
