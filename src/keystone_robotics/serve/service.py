"""What all protocols share: clients and their episodes, the way to the model, tokens, limits, state of the server."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from keystone_robotics import __version__
from keystone_robotics.sample.noise import derive_seed
from keystone_robotics.serve.messages import Ask, Refused, Reply, RobotId, take_options
from keystone_robotics.serve.metrics import Metrics
from keystone_robotics.serve.model import Model

log = logging.getLogger("keystone.serve")


@dataclass(frozen=True)
class Guard:
    """Limits of what clients may do to the server.

    Attributes:
        token: that they must send; None if none is needed.
        max_connections: at a time; further ones are refused.
        max_message: bytes.
        max_rows: robots in one message.
        read_timeout: seconds in which a handshake, or a message that has begun in parts, must be complete.
        idle_timeout: seconds without a message after which a connection is closed.
    """

    token: str | None = None
    max_connections: int = 64
    max_message: int = 64_000_000
    max_rows: int = 64
    read_timeout: float = 10.0
    idle_timeout: float = 600.0

    def admits(self, given: str | None) -> bool:
        """Whether a client sent the token. Takes the same time for every wrong one.

        >>> Guard(token="0123456789abcdef").admits("0123456789abcdef"), Guard(token="0123").admits(None), Guard().admits(None)
        (True, False, True)
        """
        if self.token is None:
            return True
        return hmac.compare_digest((given or "").encode(errors="surrogateescape"), self.token.encode())

    def admits_header(self, authorization: str | None) -> bool:
        """The same of an ``Authorization`` header: ``Api-Key TOKEN``, as openpi's client sends it, or ``Bearer TOKEN``."""
        scheme, _, token = (authorization or "").partition(" ")
        return self.admits(token.strip() if scheme.lower() in ("api-key", "bearer") else None)


@dataclass(eq=False)
class Client:
    """One connection.

    Attributes:
        name: of the connection, which is also its robot unless the client names an episode.
        robots: that end with the connection.
        tasks: likewise.
    """

    name: str
    robots: set[RobotId] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Service:
    """Between the protocols, which run in one event loop, and the model, which has a thread of its own.

    Attributes:
        model: that answers.
        guard: limits.
        metrics: counters.
        metadata: sent to clients that ask who answers.
        draining: the server is about to end: no new connections, no new requests.
        connections: clients that are connected.
        acting: requests that are not answered yet.
    """

    def __init__(self, model: Model, guard: Guard = Guard(), metrics: Metrics | None = None) -> None:  # noqa: B008
        self.model, self.guard = model, guard
        self.metrics = metrics or Metrics()
        self.draining = False
        self.connections = 0
        self.acting = 0
        self._numbers = itertools.count(1)
        interface = model.interface
        self.metadata: dict[str, Any] = {
            **interface.metadata,
            "keystone": {
                "version": __version__,
                "policy": interface.name,
                "rule": model.rule.name,
                "k": model.k,
                "inputs": list(interface.inputs),
            },
        }

    # ---- connections

    @contextlib.contextmanager
    def connected(self, protocol: str) -> Iterator[Client]:
        """A client for the time of its connection.

        Raises:
            Refused: if there are too many, or the server is about to end.
        """
        if (refusal := self.refuse_connection()) is not None:
            raise refusal
        client = Client(f"{protocol}-{next(self._numbers)}")
        self._count(1)
        try:
            yield client
        finally:
            self._count(-1)
            for task in client.tasks:
                task.cancel()
            for robot in client.robots:  # those that have no name of their own are forgotten
                self.model.forget(robot)

    def _count(self, change: int) -> None:
        self.connections += change
        self.metrics.connections.set(self.connections)

    def refuse_connection(self) -> Refused | None:
        """Why there is no room for another client; None if there is."""
        if self.draining:
            return Refused("draining", "the server is shutting down")
        if self.connections >= self.guard.max_connections:
            return Refused("full", f"{self.guard.max_connections} clients are connected already (--max-connections)")
        return None

    # ---- requests

    async def act(self, client: Client, observation: dict[str, Any], row: int | None = None, **more: Any) -> Reply:
        """The reply to an observation, with KeyStone's keys in it or in ``more`` (arguments of `Ask`, and ``episode``).

        Args:
            client: who asks.
            observation: of one robot.
            row: of a message with several robots.
            **more: options of the request.

        Raises:
            Refused: in words, if there is none.
        """
        self.acting += 1
        try:
            options = {**take_options(observation), **more}
            episode = options.pop("episode", None)
            robot = RobotId(client.name if episode is None else episode, episode is not None, row)
            if episode is None:
                client.robots.add(robot)
            return await self._reply(Ask(robot, observation, **options))
        finally:
            self.acting -= 1

    async def act_for_all(
        self, client: Client, observations: Sequence[dict[str, Any]], tasks: Sequence[str], **options: Any
    ) -> list[Reply]:
        """The replies to a message with several robots, in one round if they fit.

        Raises:
            Refused: if one of them is.
        """
        if not 1 <= len(observations) <= self.guard.max_rows:
            raise Refused("message", f"{len(observations)} robots in a message: expected 1 to {self.guard.max_rows}")
        rows = [None] if len(observations) == 1 else range(len(observations))
        seeds = [options.pop("seed", None)] * len(observations)
        if len(seeds) > 1 and seeds[0] is not None:
            seeds = [derive_seed(seed, row) for row, seed in enumerate(seeds)]
        replies = await asyncio.gather(
            *(
                self.act(client, observation, row, task=task, seed=seed, **options)
                for observation, row, task, seed in zip(observations, rows, tasks, seeds, strict=True)
            ),
            return_exceptions=True,
        )
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
        return replies  # type: ignore[return-value]

    def count_refused(self, client: Client, refusal: Refused) -> None:
        """By whoever tells the client: a request can be refused before `act`, by it, or because its reply cannot be sent."""
        self.metrics.refused.labels(refusal.reason).inc()
        log.info("refused", extra={"fields": {"client": client.name, "reason": refusal.reason, "text": str(refusal)}})

    async def _reply(self, ask: Ask) -> Reply:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply | Refused] = loop.create_future()

        def settle(outcome: Reply | Refused) -> None:
            if not future.done():
                future.set_result(outcome)

        def done(outcome: Reply | Refused) -> None:  # in the model's thread
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, outcome)

        request = self.model.submit(ask, done)
        try:
            await asyncio.wait([future], timeout=self.model.expires_in(request))
            # The model's threads refuse what is too old when they take a round: none does while theirs hang.
            if not future.done() and self.model.withdraw(request):
                raise self.model.stale(request)
            outcome = await future
        except asyncio.CancelledError:  # the client is gone
            self.model.withdraw(request)
            raise
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def reset(self, client: Client, options: dict[str, Any]) -> None:
        """Begin a new episode of the client's robots, or of the one that it names."""
        episode = take_options(options).get("episode")
        rows = (None, *range(self.guard.max_rows))  # which of them the last message had is not known here
        for robot in client.robots if episode is None else (RobotId(episode, True, row) for row in rows):
            self.model.reset(robot)
