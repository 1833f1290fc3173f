"""The `main` of LeRobot's commands in a process of its own, forked from one that has imported LeRobot already.

Importing it takes 8 seconds, an episode less than one. Plugins are not imported before the fork: that is `main`'s task.
"""

import importlib
import multiprocessing
import os
import sys
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

#: A server of its own: multiprocessing has one for a process, which other tests may have started without LeRobot.
server = forkserver.ForkServer()
server.set_forkserver_preload(["lerobot.scripts.lerobot_eval", "lerobot.scripts.lerobot_train"])

#: Commands and the modules that hold their `main`.
MAINS = {
    "lerobot-eval": "lerobot.scripts.lerobot_eval",
    "lerobot-train": "lerobot.scripts.lerobot_train",
}


def console_script(name: str) -> str:
    """The command as it is installed."""
    return str(Path(sys.executable).with_name(name))


def start(command: str, arguments: list[str], directory: Path, variables: dict[str, str]) -> multiprocessing.Process:
    """Start one of `MAINS`; all that it prints goes to ``directory/output.txt``."""
    process = multiprocessing.get_context("forkserver").Process(
        target=_run, args=(command, arguments, directory, variables)
    )
    with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
        process.start()
    return process


def run(command: str, arguments: list[str], directory: Path, variables: dict[str, str], timeout: float = 300) -> int:
    """Run one of `MAINS` to its end. Returns the exit code."""
    process = start(command, arguments, directory, variables)
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{command} {' '.join(arguments)}")
    return process.exitcode


def _run(command: str, arguments: list[str], directory: Path, variables: dict[str, str]) -> None:
    output = os.open(directory / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [command, *arguments]
    importlib.import_module(MAINS[command]).main()
