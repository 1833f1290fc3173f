"""Tiny checkpoints, and LeRobot's own commands run on them in processes of their own."""

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import eval_process
import pytest

from tiny import build
from tiny.checkpoint import env_features, save_checkpoint

VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "MUJOCO_GL": "egl",
    "OMP_NUM_THREADS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "TOKENIZERS_PARALLELISM": "false",
}


class Finished(NamedTuple):
    """A command that has ended: its exit code, and where it wrote."""

    code: int
    directory: Path

    @property
    def output(self) -> str:
        return (self.directory / "output.txt").read_text()

    @property
    def rewards(self) -> list[float]:
        info = json.loads((self.directory / "eval_info.json").read_text())
        return [reward for task in info["per_task"] for reward in task["metrics"]["sum_rewards"]]

    @property
    def rounds(self) -> list[dict[str, Any]]:
        log = self.directory / "rounds.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture(scope="session")
def variables() -> dict[str, str]:
    """The environment for a command, without any setting of KeyStone's."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("KEYSTONE_")}, **VARIABLES}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`checkpoint("diffusion")`: a directory with config, weights and processors, made once."""

    @functools.cache
    def make(name: str) -> Path:
        directory = tmp_path_factory.mktemp(name)
        save_checkpoint(build(name, **env_features("pusht")), directory, "pusht")
        return directory

    return make


@pytest.fixture(scope="session")
def evaluate(tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]) -> Callable[..., Finished]:
    """`evaluate("--policy.path=…", KEYSTONE_K="8")`: one short episode by the real `lerobot-eval`."""

    def run(*arguments: str, from_scratch: bool = False, **more: str) -> Finished:
        directory = tmp_path_factory.mktemp("eval")
        episode = [
            "--env.type=pusht", "--env.episode_length=20", "--eval.n_episodes=1", "--eval.batch_size=1",
            "--eval.use_async_envs=false", "--seed=0", f"--output_dir={directory}",
        ]  # fmt: skip
        environment = {**variables, "KEYSTONE_LOG": str(directory / "rounds.jsonl"), **more}
        if not from_scratch:
            return Finished(eval_process.run("lerobot-eval", [*episode, *arguments], directory, environment), directory)
        with (directory / "output.txt").open("w") as output:
            done = subprocess.run(
                [eval_process.console_script("lerobot-eval"), *episode, *arguments],
                env=environment, cwd=directory, stdout=output, stderr=subprocess.STDOUT, timeout=300,
            )  # fmt: skip
        return Finished(done.returncode, directory)

    return run
