"""vla-eval's own CogACT server, with a small model instead of the one that it loads."""

import sys
import types

import anyio
import numpy as np
import pytest
import torch
from vla_eval.model_servers.base import SessionContext
from vla_eval.model_servers.cogact import CogACTModelServer

from keystone_robotics.integrations.vla_eval import wrap_server
from upstream_like import cogact_like


class Loaded(cogact_like.Framework):
    """The arguments and results of CogACT's own model."""

    def predict_action_batch(self, images, prompts, unnorm_key, cfg_scale, use_ddim, num_ddim_steps):
        self.action_model.create_ddim(num_ddim_steps)
        colours = torch.stack([torch.tensor(np.asarray(image), dtype=torch.float32).mean((0, 1)) for image in images])
        return super().predict_action(colours / 255, cfg_scale, use_ddim).numpy(), None

    def predict_action(self, image, prompt, **options):
        actions, _ = self.predict_action_batch([image], [prompt], **options)
        return actions[0], None


@pytest.mark.parametrize("use_ddim", [True, False])
def test_its_chunks_are_chosen_among_candidates(monkeypatch, use_ddim):
    torch.manual_seed(0)
    module = types.SimpleNamespace(load_vla=lambda *_, **__: Loaded().requires_grad_(False))
    monkeypatch.setitem(sys.modules, "vla", module)
    server = wrap_server(CogACTModelServer)(
        keystone={"k": 4}, use_ddim=use_ddim, num_ddim_steps=4, chunk_size=cogact_like.HORIZON
    )
    context = SessionContext("session", "id")
    anyio.run(server.on_episode_start, {"task": {"name": "stack", "episode_idx": 0}}, context)
    image = np.full((8, 8, 3), 100, np.uint8)
    answer = server.predict({"images": {"front": image}, "task_description": "stack"}, context)
    assert answer["actions"].shape == (cogact_like.HORIZON, cogact_like.DIMS)
    batch = server.predict_batch([{"images": {"front": image}}] * 2, [context] * 2)
    assert [one["actions"].shape for one in batch] == [answer["actions"].shape] * 2
    handle = server._keystone_serving.handle
    assert (handle.adapter, handle.engine.finding.k, handle.stats["rounds"]) == ("cogact", 4, 2)
