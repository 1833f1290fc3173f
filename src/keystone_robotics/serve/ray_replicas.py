"""Replicas of a policy on a Ray cluster, as a Ray Serve deployment. Ray Serve places them, restarts those that die, and gives
each round to one that is free; queue, deadlines and what is remembered of robots stay in the front end.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from dataclasses import replace
from typing import Any

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.executors.cluster import connected_ray, deaths
from keystone_robotics.handle import RoundEvent
from keystone_robotics.serve.policy import Interface
from keystone_robotics.serve.replica import Loading, RoundFailed, RoundInputs, RoundResult, WarmUp
from keystone_robotics.serve.scheduler import Limits

log = logging.getLogger("keystone.serve")

#: Replicas that a round may cost: one that kills every replica must not go through all of them.
TRIES = 2
#: Seconds in which a replica must answer; those that died are started again meanwhile.
PATIENCE = 60.0


class RayReplicas:
    """As many replicas as were asked for, each a process with a policy of its own.

    Args:
        loading: how a replica is made.
        limits: of rounds, for the warm-up.
        count: of replicas.
        address: of a Ray cluster: "local" starts one on this machine, "auto" finds the running one.
        gpus: of a replica.
        name: of the Ray Serve application. One that is there under this name is replaced: that of a front end before this one.
    """

    def __init__(
        self,
        loading: Loading,
        limits: Limits,
        count: int,
        address: str = "local",
        gpus: float = 0.0,
        name: str = "keystone",
    ) -> None:
        self.count, self.spec = count, loading.spec
        self._numbers = itertools.count()
        self._connection = contextlib.ExitStack()
        os.environ.setdefault("RAY_worker_niceness", "0")  # not 15: robots wait for them
        with contextlib.ExitStack() as opened:
            self._ray = opened.enter_context(connected_ray(address, max(count, os.cpu_count() or 1)))
            try:
                from ray import serve
            except ImportError:
                raise KeystoneError('--replicas needs Ray Serve: pip install "keystone-robotics[ray-serve]"') from None
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            serve.start(proxy_location="Disabled")  # robots speak to the front end
            deployment = serve.deployment(
                _Deployed, name="replica", num_replicas=count, max_ongoing_requests=1,
                ray_actor_options={"num_cpus": 1, "num_gpus": gpus}, health_check_period_s=2, max_constructor_retry_count=1,
                graceful_shutdown_wait_loop_s=0.1, graceful_shutdown_timeout_s=2,
            )  # fmt: skip
            opened.callback(serve.delete, name)
            try:
                self._handle = serve.run(deployment.bind(loading, limits), name=name, route_prefix=None)
            except RuntimeError:
                (failed,) = serve.status().applications[name].deployments.values()
                raise KeystoneError(f"the replicas did not start: {_last_line(failed.message)}") from None
            self._connection = opened.pop_all()
        self.interface: Interface
        self._found: WarmUp
        self.interface, self._found = self._handle.describe.remote().result(timeout_s=PATIENCE)

    def warm_up(self, limits: Limits) -> WarmUp:
        """What one of them has found; Ray Serve counts a replica as ready when it is warm."""
        return self._found

    def compute(self, inputs: RoundInputs) -> RoundResult:
        """One round, by a replica that is free; by another one if that dies."""
        for _ in range(TRIES):
            try:
                result: RoundResult | RoundFailed = self._handle.compute.remote(inputs).result(timeout_s=PATIENCE)
            except deaths(self._ray):
                log.warning("a replica died in a round of %d robots", len(inputs.rows))
                continue
            except TimeoutError:
                raise RoundFailed(f"no replica answered within {PATIENCE:g} s") from None
            if isinstance(result, RoundFailed):
                raise result
            return replace(result, events=[replace(one, number=next(self._numbers)) for one in result.events])
        raise RoundFailed(f"{TRIES} replicas died in this round")

    def close(self) -> None:
        """End the replicas, and the cluster if it was started here."""
        self._connection.close()


class _Deployed:
    """A replica in a process of Ray's."""

    def __init__(self, loading: Loading, limits: Limits) -> None:
        self._replica = loading.replica()
        self._found = self._replica.warm_up(limits)

    def describe(self) -> tuple[Interface, WarmUp]:
        return self._replica.interface, self._found

    def compute(self, inputs: RoundInputs) -> RoundResult | RoundFailed:
        """A failure is returned: Ray would wrap what is raised."""
        try:
            result = self._replica.compute(inputs)
        except RoundFailed as failed:
            return failed
        return replace(result, events=[_on_host(one) for one in result.events])


def _on_host(event: RoundEvent) -> RoundEvent:
    selection: Any = event.selection
    return replace(event, candidates=event.candidates.cpu(), selection=selection._replace(chunk=selection.chunk.cpu()))


def _last_line(text: str) -> str:
    return [line for line in text.splitlines() if line.strip()][-1].strip()
