"""vla-eval's own server of LeRobot policies, with KeyStone in it, on a tiny checkpoint."""

import numpy as np
import torch
from vla_eval.model_servers.base import SessionContext
from vla_eval.model_servers.lerobot import LeRobotModelServer

from keystone_robotics.integrations.vla_eval import wrap_server
from tiny import build
from tiny.checkpoint import env_features, save_checkpoint

OBSERVATION = {
    "images": {"camera": np.random.default_rng(0).integers(0, 255, (96, 96, 3), dtype=np.uint8)},
    "state": np.array([200.0, 300.0], np.float32),
    "task_description": "push the T",
}


def test_a_lerobot_checkpoint_behind_vla_evals_server(tmp_path):
    save_checkpoint(build("smolvla", **env_features("pusht")), tmp_path)
    common = {"policy_type": "smolvla", "checkpoint": str(tmp_path), "device": "cpu", "chunk_size": 3}
    server = wrap_server(LeRobotModelServer)(**common, keystone={"k": 4})
    counted = []
    handle = server._keystone_serving.handle
    handle.subscribe(lambda event: counted.append(event.space))
    context = SessionContext("session", "episode")

    answer = server.predict(OBSERVATION, context)
    assert handle.adapter == "smolvla"
    assert (answer["keystone"]["k"], handle.engine.finding.k) == (4, 4)  # checked against the policy's own calls
    assert answer["actions"].shape[1] == 2
    assert (counted[0].dims, counted[0].steps) == (2, range(3))  # of 32 padded dimensions, of a longer chunk

    server.keystone_k = 1
    plain = LeRobotModelServer(**common)
    answers = []
    for one in (server, plain):
        torch.manual_seed(0)
        answers.append(one.predict(OBSERVATION, context))
    np.testing.assert_array_equal(answers[0]["actions"], answers[1]["actions"])
    assert "keystone" not in answers[0]
