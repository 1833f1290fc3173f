"""Finds and loads a policy by name or folder."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.named import is_reference, make_named
from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.provider import PolicyProvider, policy_providers

#: File that ``keystone train`` writes beside the weights: task names, benchmark, settings.
RECORD = "training.json"


def shipped_policies() -> dict[str, Path]:
    """The policies that come with installed distributions (the study), by name."""
    return {name: folder for provider in policy_providers() for name, folder in provider.shipped().items()}


def find_policy(name: str) -> Path | None:
    """The folder of a shipped policy or of a checkpoint on disk; None for a possible hub name and for
    ``package.module:function``.

    >>> find_policy("metaworld-mixt")
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: there is no policy 'metaworld-mixt': ...
    """
    shipped = shipped_policies()
    if name in shipped:
        return shipped[name]
    folder = Path(name)
    if os.path.isdir(name):  # noqa: PTH112 (Path.is_dir raises for what is too long for a file: a reference with options)
        if not (folder / "config.json").is_file():
            raise KeystoneError(
                f"{name} holds no config.json: expected a folder that `keystone train` or LeRobot wrote"
            )
        return folder
    if is_reference(name) or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
        return None
    raise KeystoneError(
        f"there is no policy {name!r}: expected a folder, a LeRobot name on the hub (user/name), package.module:function or "
        f"one that comes with KeyStone's study{_known(name, shipped)}"
    )


def _known(name: str, shipped: Collection[str]) -> str:
    return f"; {nearest_name(name, shipped)}" if shipped else ", which is not installed: pip install keystone-study"


def trained_on(name: str) -> tuple[str, ...]:
    """The tasks that a policy was trained on, if ``keystone train`` recorded them."""
    record = _record(name)
    return () if record is None else tuple(record["tasks"])


def check_names(policy: str, env: str = "", tasks: Sequence[str] = (), allow_untrained_tasks: bool = False) -> None:
    """Raise a KeystoneError if a policy, an environment or a task is given by a name that nothing has. Imports no torch and no
    simulator: the tasks of other people's environments are not checked.

    >>> check_names("metaworld-mixed", "metaworld", ["push-v4"])
    Traceback (most recent call last):
    keystone_robotics.errors.KeystoneError: metaworld has no task 'push-v4': did you mean 'push-v3'? ...
    """
    if find_policy(policy) is None and not is_reference(policy):
        _check_hub(policy)
    if not env:
        return
    from keystone_robotics.environments import (
        BENCHMARKS,
        find_benchmark,
    )  # needs gymnasium, which a server may not have

    if not is_reference(env):
        find_benchmark(env)
    if env in BENCHMARKS:
        check_tasks(policy, env, tasks or default_tasks(policy, env), allow_untrained_tasks)


def _check_hub(name: str) -> None:
    """Raise a KeystoneError if there is no such checkpoint on the hub or in its cache. LeRobot takes 15 s to say so."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        return  # comes with LeRobot, without which nothing of the hub is loaded
    try:
        hf_hub_download(name, "config.json")
    except Exception as error:
        raise _not_on_hub(name, error) from error


def _not_on_hub(name: str, error: Exception) -> KeystoneError:
    reason = " ".join(str(error).split())  # hub errors have several lines
    return KeystoneError(f"there is no folder {name}, and as a name on the hub: {reason}")


def check_tasks(policy: str, env: str, tasks: Sequence[str], allow_untrained_tasks: bool = False) -> None:
    """Raise a KeystoneError if the environment has no such task, or is another than the policy was trained for."""
    from keystone_robotics.environments import find_benchmark

    known, trained_env = find_benchmark(env).tasks(), trained_for(policy)
    for task in tasks:
        mismatch = (task in known) != (task in trained_on(policy))
        if trained_env not in (None, env) and mismatch and not allow_untrained_tasks:
            raise KeystoneError(f"policy {policy!r} was trained for {trained_env}, not for {env}: --env {trained_env}")
        if task not in known:
            raise KeystoneError(f"{env} has no task {task!r}: {nearest_name(task, known)}")


def default_tasks(policy: Any, env: Any) -> tuple[str, ...]:
    """The tasks that the policy was trained on, else all tasks of the environment; none if either is not a name."""
    if not isinstance(policy, str) or not isinstance(env, str):
        return ()
    from keystone_robotics.environments import find_benchmark  # needs gymnasium, which a server does without

    return trained_on(policy) or find_benchmark(env).tasks()


def trained_for(name: str) -> str | None:
    """The benchmark that a policy was trained for, if ``keystone train`` recorded it."""
    benchmark = (_record(name) or {}).get("benchmark")
    return None if benchmark is None else str(benchmark)


def _record(name: str) -> dict[str, Any] | None:
    """The training record of a policy, if ``keystone train`` wrote one."""
    folder = find_policy(name)
    if folder is None or not (folder / RECORD).is_file():
        return None
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text())
        tasks = record["tasks"]
        if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
            raise TypeError(f"tasks are {tasks!r}, expected a list of names")
        return {**record, "tasks": tuple(tasks)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KeystoneError(f"{folder / RECORD} cannot be read: {error}") from error


def load_agent(name: str, device: str | None = None, trust_remote_code: bool = False) -> Agent:
    """A policy, ready to plan.

    Args:
        name: a shipped policy, a folder written by ``keystone train`` or LeRobot, a LeRobot name on the hub, or
            ``package.module:function`` that returns an `Agent`.
        device: of the policy; default its checkpoint's. A function gets it as ``device``.
        trust_remote_code: run code that a LeRobot checkpoint names but LeRobot did not install (docs/security.md).

    Raises:
        KeystoneError: if it cannot be loaded on that device.
    """
    if device is not None:
        check_device(device, here=True)
    folder = find_policy(name)
    if folder is None and is_reference(name):
        return make_named(name, Agent, device=device)
    provider = find_provider(folder)
    if folder is not None and provider is not None:
        return provider.make_agent(provider.load(folder, device), trained_on(name))
    from keystone_robotics.policies.lerobot_agent import LeRobotAgent

    try:
        return LeRobotAgent(str(folder or name), device, trained_on(name), trust_remote_code)
    except KeystoneError as error:
        if folder is not None:
            raise
        raise _not_on_hub(name, error) from error


def find_provider(folder: Path | None) -> PolicyProvider | None:
    """The provider of the checkpoint in a folder; None if it is LeRobot's."""
    kind = None if folder is None else policy_type(folder)
    return next((provider for provider in policy_providers() if provider.type == kind), None)


def check_device(name: str, here: bool = False) -> None:
    """Raise a KeystoneError if the name is not a device; with ``here``, also if this machine does not have it."""
    import torch  # late: whether a policy exists is said without it

    try:
        device = torch.device(name)
        if here:
            torch.empty(0, device=device)
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ) as error:  # each backend raises another error
        reason = str(error).partition("\n")[0]
        raise KeystoneError(f"device {name!r} cannot be used: {reason}") from error


def policy_type(folder: Path) -> Any:
    """The ``type`` in a policy's config.json."""
    try:
        return json.loads((folder / "config.json").read_text()).get("type")
    except (ValueError, AttributeError) as error:
        raise KeystoneError(f"{folder / 'config.json'} cannot be read: {error}") from error
