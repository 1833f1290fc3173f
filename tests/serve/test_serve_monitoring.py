"""Alarms and the adaptive horizon on the wire: what openpi's, RoboArena's and LeRobot's clients get of them."""

import pytest
from serving import STATE, make_model, serving, state
from test_serve_lerobot import Robot
from test_serve_openpi import connect
from test_serve_roboarena import Client

from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.monitor.calibration import Calibration

PROTOCOLS = ("openpi", "roboarena", "lerobot")
FIELDS = ("alarm", "alarm_score", "alarm_limit", "alarm_reason")


def alarm_of(reply):
    return tuple(reply["keystone"][name] for name in FIELDS)


@pytest.mark.parametrize(("limit", "agreed"), [(0, 2), (1, 6)])
def test_every_client_gets_the_steps_that_the_candidates_agree_on(limit, agreed):
    """openpi's chunk is whole, with their number; RoboArena's and LeRobot's clients, which execute all, get no more."""
    with serving(*PROTOCOLS, model=make_model(f"core-mean:k=8,execute=2..6:{limit}")) as (_, ports):
        reply = connect(ports).infer({STATE: state(1)})
        assert (reply["keystone"]["agreed_steps"], reply["actions"].shape) == (agreed, (6, 2))
        reply = Client(ports["roboarena"]).infer({STATE: state(1)})
        assert (reply["keystone"]["agreed_steps"], reply["actions"].shape) == (agreed, (agreed, 2))
        robot = Robot(ports["lerobot"])
        robot.observe(1)
        actions, report = robot.actions()
        assert (report["agreed_steps"], len(actions)) == (agreed, min(agreed, 4))  # its actions_per_chunk is 4


def test_replies_have_the_alarm_of_the_robots_episode_which_outlives_its_connection(caplog):
    calibration = Calibration(
        "overlap-distance", "high", "constant", (1e-9,), 1, 0.05, 19, spec="core-mean:k=8", tasks=("lift",)
    )
    model = make_model("core-mean:k=8,execute=4", listeners=[Alarm(calibration)])
    named = {STATE: state(1), "keystone_episode": "arm 1"}
    silent = (False, None, 1e-9, None)  # one round: nothing to compare
    with serving(*PROTOCOLS, model=model) as (service, ports):
        first = connect(ports)
        assert alarm_of(first.infer({**named, "prompt": "lift"})) == silent
        assert alarm_of(connect(ports).infer({STATE: state(1)})) == silent  # another robot
        first._ws.close()
        rung, score, limit, reason = alarm_of(connect(ports).infer(named))  # in mid-episode, on a new connection
        assert (rung, limit) == (True, 1e-9)
        assert score > 0
        assert reason.startswith(f"round 1: overlap-distance {score:.2g} > 1e-09")

        session = {STATE: state(1), "session_id": "arm 2"}
        assert alarm_of(Client(ports["roboarena"]).infer(session)) == silent
        again = Client(ports["roboarena"])
        assert alarm_of(again.infer(session))[0] is True
        again.reset({"session_id": "arm 2"})
        assert alarm_of(again.infer(session)) == silent

        robot = Robot(ports["lerobot"])
        for rung in (False, True):
            robot.observe(1)
            assert alarm_of({"keystone": robot.actions()[1]})[0] is rung
        assert b"keystone_alarms_total 3.0" in service.metrics.render()
    assert caplog.text.count("the alarm was calibrated on 'lift'") == 1
    assert "for task 'push'" in caplog.text  # LeRobot's client says its task
