"""openpi: a policy with KeyStone attached. `trained_policy` is what ``keystone serve`` loads::

    keystone serve "keystone_robotics.integrations.openpi:trained_policy?config=pi05_libero&checkpoint=…" --k 16 --execute 5

and `wrap_policy` is for a script of your own, with openpi's `WebsocketPolicyServer`::

    policy = wrap_policy(policy_config.create_trained_policy(config, checkpoint), "core-mean:k=16", execute=5)
    policy.warm_up()
    WebsocketPolicyServer(policy, port=8000, metadata=policy.metadata).serve_forever()
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import threading
from collections.abc import Mapping
from typing import Any

from keystone_robotics.attachment import attach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import Handle, RoundEvent
from keystone_robotics.integrations.many_episodes import refuse_memory
from keystone_robotics.integrations.openpi_warm_up import warm_up
from keystone_robotics.integrations.round_log import describe_row
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.named import factory
from keystone_robotics.spec import Spec

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
            reply[REPLY] = describe_row(self._event, 0)
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


@factory
def trained_policy(config: str, checkpoint: str, prompt: str | None = None, device: str | None = None) -> Any:
    """Openpi's policy of a checkpoint, for ``keystone serve``; in openpi's environment.

    Args:
        config: name of a training configuration, ``pi05_libero``.
        checkpoint: folder, or a path that openpi can download.
        prompt: of requests that bring none.
        device: of a PyTorch model.
    """
    try:
        policies = importlib.import_module("openpi.policies.policy_config")
        configs = importlib.import_module("openpi.training.config")
    except ImportError as error:
        raise KeystoneError(f"openpi cannot be imported here ({error}): run this in openpi's environment") from error
    return policies.create_trained_policy(
        configs.get_config(config), checkpoint, default_prompt=prompt, pytorch_device=device
    )
