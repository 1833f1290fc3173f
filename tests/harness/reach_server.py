"""A model server as a user of vla-eval writes it: it knows nothing of KeyStone."""

import numpy as np
import torch
from reach_policy import REAL, ReachPolicy
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.specs import RAW


class ReachServer(PredictModelServer):
    def __init__(self, bias: float = 0.0, *, chunk_size: int | None = 4, **kwargs) -> None:
        super().__init__(chunk_size=chunk_size, **kwargs)
        self.bias = bias
        self._brain = ReachPolicy()
        self.batches = []

    def get_action_spec(self):
        return {"action": RAW}

    def get_observation_spec(self):
        return {"state": RAW}

    def predict_batch(self, obs_batch, ctx_batch):
        self.batches.append(len(obs_batch))
        states = torch.as_tensor(np.stack([np.asarray(obs["state"], np.float32) for obs in obs_batch]))
        chunks = self._brain.act(states)[..., :REAL] + self.bias
        return [{"actions": chunk.numpy()} for chunk in chunks]


if __name__ == "__main__":
    from vla_eval.model_servers.serve import run_server

    run_server(ReachServer)
