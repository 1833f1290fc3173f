"""A benchmark of vla-eval that costs nothing: from the left edge of a corridor to its right end without touching the walls."""

import numpy as np
from vla_eval.benchmarks.base import StepBenchmark, StepResult
from vla_eval.specs import RAW


class Reach(StepBenchmark):
    render_backends = frozenset({"gpu", "cpu"})

    @classmethod
    def configure_render(cls, mode):
        return {}

    def __init__(self, seed: int = 0, wall: float = 0.45) -> None:
        super().__init__()
        self.seed, self.wall = seed, wall

    def get_tasks(self):
        return [{"name": "reach"}, {"name": "reach-far"}]

    def reset(self, task):
        far = task["name"] == "reach-far"
        offset = np.random.default_rng([self.seed, task["episode_idx"]]).uniform(-0.2, 0.2)
        self.position = np.array([-1.2 if far else -0.8, offset], np.float32)
        return self.position.copy()

    def step(self, action):
        self.position = self.position + 0.1 * np.asarray(action["actions"], np.float32)
        reached = bool(np.linalg.norm(self.position - [1.0, 0.0]) < 0.15)
        touched = bool(abs(self.position[1]) > self.wall)
        self._recorder.record_step(success=reached)
        return StepResult(self.position.copy(), float(reached), reached or touched, {"success": reached})

    def make_obs(self, raw_obs, task):
        return {"state": raw_obs, "task_description": task["name"]}

    def get_step_result(self, step_result):
        return {"success": bool(step_result.info.get("success", False))}

    def get_metadata(self):
        return {"max_steps": 40}

    def get_action_spec(self):
        return {"action": RAW}

    def get_observation_spec(self):
        return {"state": RAW}
