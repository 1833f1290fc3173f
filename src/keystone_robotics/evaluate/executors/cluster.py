"""Executor on a Ray cluster: a new one on this machine, or a running one."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.config import EvaluationConfig, Shard
from keystone_robotics.evaluate.executors import TRIES, Executor, T, WorkerFailed
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.results import ShardResult, failed_episodes
from keystone_robotics.evaluate.worker import Worker
from keystone_robotics.named import is_reference
from keystone_robotics.policies.load import check_device


class RayCluster(Executor):
    """An executor on Ray. Each Ray worker supervises one process, as `LocalProcesses` does on this machine: episodes that hang
    or kill it are found there. Ray itself distributes the shards, and retries those whose Ray worker or machine dies, up to
    three attempts in all.

    Args:
        address: "local" starts a cluster on this machine, "auto" finds the running one, or an address. A process that is
            already connected to a cluster uses that one and stays connected.
        workers: shards that run at once; None for one per CPU of the cluster.
        gpus: fraction of a GPU per worker.
        episode_timeout: see `LocalProcesses`.
    """

    def __init__(
        self,
        address: str = "local",
        workers: int | None = None,
        gpus: float = 0.0,
        episode_timeout: float | None = None,
    ) -> None:
        self.address, self.workers, self.gpus, self.episode_timeout = address, workers, gpus, episode_timeout
        self._connection = contextlib.ExitStack()

    def check(self, settings: EvaluationConfig) -> None:
        """The policy is loaded in this process, on the CPU if possible, and released."""
        if settings.device is not None:
            check_device(settings.device)
        # A user's own function may not take a device.
        InProcess().check(settings if is_reference(settings.policy) else replace(settings, device="cpu"))

    def close(self) -> None:
        self._connection.close()

    def __call__(self, settings: EvaluationConfig, shards: Sequence[Shard]) -> Iterator[ShardResult]:
        if not shards:
            return
        with self:
            ray, on_cluster, cpus = self._resources()
            remote = on_cluster(_run_shard)
            limit = self.workers or cpus
            _check_start(ray, on_cluster(_start), settings)
            waiting, running = deque(shards), dict[Any, Shard]()
            try:
                while waiting or running:
                    while waiting and len(running) < limit:
                        shard = waiting.popleft()
                        running[remote.remote(settings, shard, self.episode_timeout)] = shard
                    (done, *_), _ = ray.wait(list(running), num_returns=1)
                    shard = running.pop(done)
                    try:
                        yield ray.get(done)
                    except ray.exceptions.RayTaskError as error:
                        raise _unwrap(error) from None
                    except deaths(ray):
                        reason = f"its Ray worker died {TRIES} times"
                        episodes = failed_episodes(settings, shard, shard.episodes, reason)
                        yield ShardResult(shard, episodes, 0.0)
            finally:
                for reference in running:
                    ray.cancel(reference, force=True)

    def run_in_worker(self, settings: EvaluationConfig, function: Callable[[Worker], T]) -> T:
        with self:
            ray, on_cluster, _ = self._resources()
            try:
                value: T = ray.get(on_cluster(_call).remote(settings, function, self.episode_timeout))
            except ray.exceptions.RayTaskError as error:
                raise _unwrap(error) from None
            except deaths(ray) as error:
                raise WorkerFailed(f"its Ray worker died {TRIES} times") from error
            return value

    def _resources(self) -> tuple[Any, Any, int]:
        """Ray, what makes a function one of its workers', and the number of CPUs."""
        ray = self._connect()
        found = ray.cluster_resources()
        if found.get("GPU", 0.0) < self.gpus:
            raise KeystoneError(f"--gpus {self.gpus:g}: the Ray cluster has {found.get('GPU', 0.0):g}")
        on_cluster = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=TRIES - 1)
        return ray, on_cluster, max(1, int(found.get("CPU", 1)))

    def _connect(self) -> Any:
        """Ray, connected until `close`."""
        return self._connection.enter_context(connected_ray(self.address, self.workers))


@contextlib.contextmanager
def connected_ray(address: str, cpus: int | None = None) -> Iterator[Any]:
    """Ray, connected for the time of the block; a process that is connected already stays so.

    Args:
        address: "local" starts a cluster on this machine, "auto" finds the running one, or an address.
        cpus: of a new cluster; None for this machine's.

    Raises:
        KeystoneError: if there is no Ray, or no cluster.
    """
    try:
        import ray
    except ImportError:
        raise KeystoneError('--ray needs Ray: pip install "keystone-robotics[ray]"') from None
    if ray.is_initialized():
        yield ray
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; it warns otherwise
    options: dict[str, Any] = {
        "address": address,
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
        "log_to_driver": False,
        "logging_level": "error",
    }
    if address == "local":
        options |= {"num_cpus": cpus or os.cpu_count(), "include_dashboard": False}
    try:
        _probe(address)
        ray.init(**options)
    except Exception as error:  # a node that starts too slowly is a bare Exception of Ray's
        raise KeystoneError(f"no Ray cluster at {address!r}: {error}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _probe(address: str) -> None:
    """Open a connection to the address, if it is one: Ray itself retries for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10.0).close()


_supervisor: LocalProcesses | None = None


def _supervise(episode_timeout: float | None) -> LocalProcesses:
    """In a Ray worker: the supervisor of its one process, which lives as long as the Ray worker."""
    global _supervisor
    if _supervisor is None:
        _supervisor = LocalProcesses(1)
        _supervisor.__enter__()
    _supervisor.episode_timeout = episode_timeout
    return _supervisor


def _start(settings: EvaluationConfig) -> None:
    """In a Ray worker: load the policy."""
    _supervise(None).check(settings)


def _run_shard(settings: EvaluationConfig, shard: Shard, episode_timeout: float | None) -> ShardResult:
    """In a Ray worker: roll out a shard."""
    (result,) = _supervise(episode_timeout)(settings, [shard])
    return result


def _call(settings: EvaluationConfig, function: Callable[[Worker], Any], episode_timeout: float | None) -> Any:
    """In a Ray worker: call a function in its process."""
    return _supervise(episode_timeout).run_in_worker(settings, function)


def _check_start(ray: Any, begin: Any, settings: EvaluationConfig) -> None:
    """Start one worker first: if it cannot start, the setup is wrong, and no shard is recorded as failed."""
    try:
        ray.get(begin.remote(settings))
    except ray.exceptions.RayTaskError as error:
        raise _unwrap(error) from None
    except deaths(ray) as error:
        raise KeystoneError(
            f"a Ray worker died {TRIES} times while starting; nothing was rolled out. It may be out of memory: see Ray's logs"
        ) from error


def _unwrap(error: Any) -> Exception:
    """The error that the worker raised, if it is one for the user; else Ray's."""
    found: Exception = error.cause if isinstance(error.cause, (KeystoneError, ImportError)) else error
    return found


def deaths(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises when a worker, an actor or a machine is gone."""
    kinds = ray.exceptions
    return kinds.WorkerCrashedError, kinds.RayActorError, kinds.NodeDiedError, kinds.OutOfMemoryError
