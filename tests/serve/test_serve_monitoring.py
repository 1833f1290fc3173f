"""Alarms and the adaptive horizon on the wire: what the clients of every protocol get of them."""

import pytest
import test_serve_groot as groot
from openpi_client import msgpack_numpy
from serving import STATE, make_model, serving, state
from test_serve_lerobot import Robot
from test_serve_openpi import connect
from test_serve_roboarena import Client
from websockets.sync.client import connect as open_socket

from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.monitor.calibration import Calibration

PROTOCOLS = ("openpi", "roboarena", "lerobot", "groot", "starvla")
FIELDS = ("alarm", "alarm_score", "alarm_limit", "alarm_reason")


def alarm_of(report):
    return tuple(report[name] for name in FIELDS)


def ask_starvla(port):
    """One robot, as StarVLA's client sends it."""
    with open_socket(f"ws://127.0.0.1:{port}", compression=None) as socket:
        socket.recv()
        socket.send(msgpack_numpy.packb({"examples": [{"image": [], "lang": "", "state": state(1)[None]}]}))
        return msgpack_numpy.unpackb(socket.recv())["data"]


@pytest.mark.parametrize(("limit", "agreed"), [(0, 2), (1, 6)])
def test_every_client_gets_the_steps_that_the_candidates_agree_on(limit, agreed):
    """RoboArena's and LeRobot's clients, which execute all that they get, get no more; others the chunk and the number."""
    with serving(*PROTOCOLS, model=make_model(f"core-mean:k=8,execute=2..6:{limit}")) as (_, ports):
        reply = connect(ports).infer({STATE: state(1)})
        assert (reply["keystone"]["agreed_steps"], reply["actions"].shape) == (agreed, (6, 2))
        reply = Client(ports["roboarena"]).infer({STATE: state(1)})
        assert (reply["keystone"]["agreed_steps"], reply["actions"].shape) == (agreed, (agreed, 2))
        robot = Robot(ports["lerobot"])
        robot.observe(1)
        actions, report = robot.actions()
        assert (report["agreed_steps"], len(actions)) == (agreed, min(agreed, 4))  # its actions_per_chunk is 4
        action, info = groot.Client(ports["groot"]).act(1)
        assert (info["keystone"][0]["agreed_steps"], action["action"].shape) == (agreed, (1, 6, 2))
        reply = ask_starvla(ports["starvla"])
        assert (reply["keystone"][0]["agreed_steps"], reply["actions"].shape) == (agreed, (1, 6, 2))


def test_replies_have_the_alarm_of_the_robots_episode_which_outlives_its_connection(caplog):
    calibration = Calibration(
        "overlap-distance", "high", "constant", (1e-9,), 1, 0.05, 19, spec="core-mean:k=8", tasks=("lift",)
    )
    model = make_model("core-mean:k=8,execute=4", listeners=[Alarm(calibration)])
    named = {STATE: state(1), "keystone_episode": "arm 1"}
    silent = (False, None, 1e-9, None)  # one round: nothing to compare
    with serving(*PROTOCOLS, model=model) as (service, ports):
        first = connect(ports)
        assert alarm_of(first.infer({**named, "prompt": "lift"})["keystone"]) == silent
        assert alarm_of(connect(ports).infer({STATE: state(1)})["keystone"]) == silent  # another robot
        first._ws.close()
        again = connect(ports).infer(named)["keystone"]  # in mid-episode, on a new connection
        rung, score, limit, reason = alarm_of(again)
        assert (rung, limit) == (True, 1e-9)
        assert score > 0
        assert reason.startswith(f"round 1: overlap-distance {score:.2g} > 1e-09")

        session = {STATE: state(1), "session_id": "arm 2"}
        assert alarm_of(Client(ports["roboarena"]).infer(session)["keystone"]) == silent
        again = Client(ports["roboarena"])
        assert alarm_of(again.infer(session)["keystone"])[0] is True
        again.reset({"session_id": "arm 2"})
        assert alarm_of(again.infer(session)["keystone"]) == silent

        robot = Robot(ports["lerobot"])
        for rung in (False, True):
            robot.observe(1)
            assert alarm_of(robot.actions()[1])[0] is rung
        assert alarm_of(ask_starvla(ports["starvla"])["keystone"][0]) == silent
        _, info = groot.Client(ports["groot"]).act(1)
        assert alarm_of(info["keystone"][0]) == silent
        assert b"keystone_alarms_total 3.0" in service.metrics.render()
    assert caplog.text.count("the alarm was calibrated on 'lift'") == 1
    assert "for task 'push'" in caplog.text  # LeRobot's client says its task
