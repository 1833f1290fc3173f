"""openpi: a policy that its stock `WebsocketPolicyServer` serves and its stock client talks to, now choosing.

In a script of one's own::

    policy = choosing(policy_config.create_trained_policy(config, checkpoint), k=16, execute=5)
    policy.warm_up()
    WebsocketPolicyServer(policy, port=8000, metadata=policy.metadata).serve_forever()

or in front of openpi's own script, as a command::

    python -m keystone_robotics.integrations.openpi --k 16 --execute 5 scripts/serve_policy.py --env LIBERO
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import operator
import runpy
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from keystone_robotics.attach import attach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.integrations.many_episodes import refuse_memory
from keystone_robotics.integrations.openpi_warm_up import warm_up
from keystone_robotics.integrations.settings import Settings, parse_k
from keystone_robotics.options import DEFAULT_K, DEFAULT_RULE
from keystone_robotics.select import ActionSpace
from keystone_robotics.select.rules import bind
from keystone_robotics.select.rules.checks import whole

#: In an observation: the seed of this request's noise. The policy does not see it.
SEED = "keystone_seed"

#: In a reply: what was chosen, and how clearly.
REPLY = "keystone"


def choosing(
    policy: Any, k: int | Literal["auto"] = DEFAULT_K, rule: Any = DEFAULT_RULE, **options: Any
) -> ChoosingPolicy:
    """An openpi policy whose every reply is the chunk that K candidates agree on.

    Args:
        policy: openpi's `Policy`, or something around it (`PolicyRecorder`).
        k: candidates per round, or "auto".
        rule: how one is chosen; not one that looks back, since a server serves many episodes at once.
        **options: of `keystone.attach`. A server does not know how many steps of a chunk its clients execute before they ask
            again: with ``execute=5`` only those count in distances. ``space=keystone.ActionSpace(dims=7)`` says which
            dimensions are real, where the policy's own transforms do not tell.
    """
    refuse_memory(bind(rule, {}))
    return ChoosingPolicy(policy, attach(policy, k, rule, **options))


class ChoosingPolicy:
    """An openpi policy to which KeyStone is attached, for openpi's servers: `infer`, `reset` and `metadata` as before.

    Replies have one more entry, ``"keystone"``, of plain numbers and lists: arrays would not survive openpi's
    `ActionChunkBroker`, which takes one row of every array. A request with ``"keystone_seed": 7`` in its observation gets
    the same chunk whenever it is made with the same observation.

    Attributes:
        handle: as `keystone.attach` returns it.
    """

    def __init__(self, policy: Any, handle: Handle) -> None:
        self._policy, self.handle = policy, handle
        self._lock = threading.Lock()
        self._event: RoundEvent | None = None
        handle.subscribe(self._note)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server tells its clients when they connect."""
        return dict(getattr(self._policy, "metadata", {}))

    def infer(self, obs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The policy's reply to an observation, with ``"keystone"`` in it."""
        observation = dict(obs)
        seed = _whole_number(observation.pop(SEED, None))
        # One device, one request at a time: the rounds of two would be told apart by nothing.
        with self._lock, contextlib.nullcontext() if seed is None else self.handle.seeded(seed):
            self._event = None
            reply = dict(self._policy.infer(observation, **kwargs))
            reply[REPLY] = _plain(self._event)
        return reply

    def warm_up(self) -> bool:
        """Answer a made-up observation before the first request, see `openpi_warm_up.warm_up`."""
        with self._lock:
            return warm_up(self.handle)

    def reset(self) -> None:
        """A new episode begins."""
        self._policy.reset()

    def _note(self, event: RoundEvent) -> None:
        self._event = event


def _whole_number(seed: Any) -> int | None:
    """Clients send numbers as Python's or numpy's, also as arrays without dimensions."""
    if seed is None:
        return None
    try:
        return operator.index(seed)
    except TypeError:
        raise KeystoneError(f"{SEED}={seed!r} in the observation: expected a whole number") from None


def _plain(event: RoundEvent | None) -> dict[str, Any]:
    """A round of one observation in Python's own numbers."""
    if event is None or not event.seeds:  # the policy's own code ran, untouched
        return {"k": 1}
    selection = event.selection
    return {
        "k": event.k,
        "path": event.path,
        "rule": selection.rule,
        "index": int(selection.index[0]),
        "sizes": [int(size) for size in selection.sizes[0] if size],
        "consensus": float(selection.consensus[0]),
        "spread": float(selection.spread[0]),
        "dropped": int(selection.dropped[0]),
        "seed": event.seeds[0],
        "sampling_ms": 1000 * event.times.sample,
        "selection_ms": 1000 * event.times.select,
    }


def serve(
    script: str,
    arguments: Sequence[str],
    settings: Settings,
    execute: int | None = None,
    space: ActionSpace | None = None,
    warm: bool = True,
) -> None:
    """Run a script that starts openpi's `WebsocketPolicyServer`, with a `ChoosingPolicy` in every server it makes.

    Args:
        script: the file.
        arguments: of the script.
        settings: of KeyStone.
        execute: steps of a chunk that clients execute; None for all.
        space: what counts in distances, where the policy does not tell.
        warm: have the policy answer a made-up observation before the server begins.
    """
    if execute is not None:
        whole("execute", execute)
    refuse_memory(settings.bind())
    path = Path(script)
    if not path.is_file():
        raise KeystoneError(f"there is no script {script}: expected openpi's scripts/serve_policy.py, or one like it")
    try:
        server = importlib.import_module("openpi.serving.websocket_policy_server").WebsocketPolicyServer
    except ImportError as error:
        raise KeystoneError(f"openpi cannot be imported here ({error}): run this in openpi's environment") from error
    begin = server.__init__

    def begin_choosing(self: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
        handle = settings.attach(policy, space)
        handle.execute = execute
        chooser = ChoosingPolicy(policy, handle)
        if warm:
            chooser.warm_up()
        begin(self, chooser, *args, **kwargs)

    before = sys.argv, sys.path[:]
    server.__init__ = begin_choosing
    sys.argv, sys.path[:0] = [str(path), *arguments], [str(path.resolve().parent)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        server.__init__, (sys.argv, sys.path[:]) = begin, before


def _candidates(text: str) -> int | Literal["auto"]:
    """K as the command line says it.

    >>> _candidates("8"), _candidates("auto")
    (8, 'auto')
    """
    try:
        return parse_k(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number or auto") from None


def main(args: Sequence[str] | None = None) -> int:
    """The command ``python -m keystone_robotics.integrations.openpi``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m keystone_robotics.integrations.openpi",
        description="Run openpi's serve_policy.py with KeyStone in its server. KEYSTONE_RULE and the like are obeyed.",
    )
    parser.add_argument("--k", type=_candidates, help="candidates per round, or auto (default: KEYSTONE_K, or 16)")
    parser.add_argument("--execute", type=int, help="steps of a chunk that the client executes (default: all)")
    parser.add_argument("--dims", type=int, help="real action dimensions, where the policy does not tell")
    parser.add_argument(
        "--warm-up",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile and check with a made-up observation before the server begins (default: yes)",
    )
    parser.add_argument("script", help="openpi's scripts/serve_policy.py, or one like it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    given = parser.parse_args(args)
    try:
        settings = Settings(k=given.k).over(Settings.from_environment())
        space = None if given.dims is None else ActionSpace(dims=given.dims)
        serve(given.script, given.arguments, settings, given.execute, space, given.warm_up)
    except (KeystoneError, ValueError) as error:
        sys.stderr.write(f"keystone: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
