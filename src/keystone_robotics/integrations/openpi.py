"""openpi: a policy with KeyStone attached, for openpi's own `WebsocketPolicyServer` and client.

In a script of your own::

    policy = wrap_policy(policy_config.create_trained_policy(config, checkpoint), "core-mean:k=16", execute=5)
    policy.warm_up()
    WebsocketPolicyServer(policy, port=8000, metadata=policy.metadata).serve_forever()

or as a launcher of openpi's script::

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
from typing import Any

from keystone_robotics.attachment import attach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.integrations.many_episodes import refuse_memory
from keystone_robotics.integrations.openpi_warm_up import warm_up
from keystone_robotics.integrations.round_log import BY_ROW, attach_with_log, summary
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.spec import Spec, flag_of, options, options_from_environment, read_options, spec_from

#: Key in an observation: the seed of this request's noise. Removed before the policy is called.
SEED = "keystone_seed"

#: Key in an observation: id of the client's episode. Removed before the policy is called.
EPISODE = "keystone_episode"

#: Key in a reply: the selection and its statistics.
REPLY = "keystone"


def wrap_policy(policy: Any, spec: Spec | str | None = None, **options: Any) -> KeystonePolicy:
    """Attach KeyStone to an openpi policy: every reply is the chunk that K candidates agree on.

    Args:
        policy: openpi's `Policy`, or a wrapper of it (`PolicyRecorder`).
        spec: how candidates are drawn and one is selected; not with a rule that uses the previous chunk, since a server
            serves many episodes at once.
        **options: of `keystone.attach`. A server does not know how many steps of a chunk its clients execute: with
            ``execute=5`` only those count in distances. ``space=keystone.ActionSpace(dims=7)`` gives the real dimensions, if
            the policy's transforms do not show them.
    """
    others = {name: options.pop(name) for name in ("site", "keep", "check", "profiles") if name in options}
    spec = Spec.of(spec, **options)
    refuse_memory(spec.bind())
    return KeystonePolicy(policy, attach(policy, spec, **others))


class KeystonePolicy:
    """An openpi policy to which KeyStone is attached, for openpi's servers: `infer`, `reset` and `metadata` as before.

    Replies have the additional entry ``"keystone"``, of plain numbers and lists: openpi's `ActionChunkBroker` takes one row of
    every array. With ``execute="auto"``, ``"agreed_steps"`` in it is how many steps to execute before the next request. With
    ``"keystone_seed": 7`` in an observation, equal observations get equal chunks. An alarm tells clients and episodes apart by
    ``"keystone_episode"`` in the observation, a text or a number; without it, `reset` starts a new episode.

    Attributes:
        handle: from `keystone.attach`.
    """

    def __init__(self, policy: Any, handle: Handle) -> None:
        self._policy, self.handle = policy, handle
        self._lock = threading.Lock()
        self._event: RoundEvent | None = None
        handle.subscribe(self._note)

    @property
    def alarm(self) -> Alarm | None:
        """The alarm that is subscribed to the handle, if there is one; its fields are in every reply."""
        return next((one for one in self.handle.engine.listeners.find(Alarm) if isinstance(one, Alarm)), None)

    @property
    def metadata(self) -> dict[str, Any]:
        """Sent to clients when they connect."""
        return dict(getattr(self._policy, "metadata", {}))

    def infer(self, obs: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The policy's reply to an observation, with ``"keystone"`` in it."""
        observation = dict(obs)
        seed = _whole_number(observation.pop(SEED, None))
        episode = _episode(observation.pop(EPISODE, None))
        # One request at a time: rounds carry no request id.
        with (
            self._lock,
            contextlib.nullcontext() if seed is None else self.handle.seeded(seed),
            contextlib.nullcontext() if episode is None else self.handle.for_episodes([episode]),
        ):
            self._event = None
            reply = dict(self._policy.infer(observation, **kwargs))
            reply[REPLY] = _plain(self._event)
            if self.alarm is not None and self._event is not None:
                reply[REPLY].update(self.alarm.row_fields(self._event)[0])
        return reply

    def warm_up(self) -> bool:
        """Run on a synthetic observation before the first request, see `openpi_warm_up.warm_up`."""
        with self._lock:
            return warm_up(self.handle)

    def reset(self) -> None:
        """Start a new episode."""
        self._policy.reset()

    def _note(self, event: RoundEvent) -> None:
        self._event = event


def _whole_number(seed: Any) -> int | None:
    """An integer of Python or numpy, or a 0-d array."""
    if seed is None:
        return None
    try:
        return operator.index(seed)
    except TypeError:
        raise KeystoneError(f"{SEED}={seed!r} in the observation: expected a whole number") from None


def _episode(value: Any) -> str | None:
    """The id of an episode: text, a number, or a 0-d array of them."""
    return None if value is None else str(value)


def _plain(event: RoundEvent | None) -> dict[str, Any]:
    """A round of one observation as plain Python numbers."""
    if event is None or not event.seeds:  # the policy's own code ran
        return {"k": 1}
    line = summary(event)
    return {
        **{name: line[name] for name in ("k", "path", "rule")},
        **{name: line[name][0] for name in (*BY_ROW, "agreed_steps") if name in line},
        "sizes": [size for size in line["sizes"][0] if size],
        "dropped": int(event.selection.dropped[0]),
        "seed": event.seeds[0],
        "sampling_ms": 1000 * event.times.sample,
        "selection_ms": 1000 * event.times.select,
    }


def serve(script: str, arguments: Sequence[str], spec: Spec, warm: bool = True) -> None:
    """Run a script that starts openpi's `WebsocketPolicyServer`, with a `KeystonePolicy` in every server it creates.

    Args:
        script: the file.
        arguments: of the script.
        spec: how candidates are drawn and one is selected; ``execute`` is the number of steps that clients execute.
        warm: run the policy on a synthetic observation before the server starts.
    """
    refuse_memory(spec.bind())
    path = Path(script)
    if not path.is_file():
        raise KeystoneError(f"there is no script {script}: expected openpi's scripts/serve_policy.py, or one like it")
    try:
        server = importlib.import_module("openpi.serving.websocket_policy_server").WebsocketPolicyServer
    except ImportError as error:
        raise KeystoneError(f"openpi cannot be imported here ({error}): run this in openpi's environment") from error
    begin = server.__init__

    def begin_attached(self: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
        handle = attach_with_log(policy, spec)
        attached = KeystonePolicy(policy, handle)
        if warm:
            attached.warm_up()
        begin(self, attached, *args, **kwargs)

    before = sys.argv, sys.path[:]
    server.__init__ = begin_attached
    sys.argv, sys.path[:0] = [str(path), *arguments], [str(path.resolve().parent)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        server.__init__, (sys.argv, sys.path[:]) = begin, before


def main(args: Sequence[str] | None = None) -> int:
    """The command ``python -m keystone_robotics.integrations.openpi``; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m keystone_robotics.integrations.openpi",
        description="Run openpi's serve_policy.py with KeyStone in its server. Flags override KEYSTONE_* variables.",
        allow_abbrev=False,
    )
    for name, option in options().items():
        short = [f"-{name}"] if len(name) == 1 else []
        parser.add_argument(flag_of(name), *short, metavar=name.upper(), help=option.help.replace("%", "%%"))
    parser.add_argument(
        "--warm-up",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile and check with a synthetic observation before the server starts (default: yes)",
    )
    parser.add_argument("script", help="openpi's scripts/serve_policy.py, or one like it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    given = vars(parser.parse_args(args))
    script, arguments, warm = given.pop("script"), given.pop("arguments"), given.pop("warm_up")
    try:
        flags = read_options(given, flag_of)
        serve(script, arguments, spec_from(flags, options_from_environment()), warm)
    except KeystoneError as error:
        sys.stderr.write(f"keystone: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
