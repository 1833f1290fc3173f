"""What is served: an `Agent`, which takes several robots in one round, or any policy that takes its own clients' messages."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations.openpi_inputs import synthetic_input_transform
from keystone_robotics.named import is_reference, make_named
from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.load import check_device, load_agent
from keystone_robotics.sample.families.pi.openpi_policy import is_policy
from keystone_robotics.serve.messages import Ask, Refused
from keystone_robotics.serve.observations import fit, is_image, take_task


@dataclass(frozen=True)
class Row:
    """One robot of a round.

    Attributes:
        observations: its last ones, newest last.
        task: its instruction.
    """

    observations: Sequence[Any] = field(repr=False)
    task: str = ""


@dataclass(frozen=True)
class Answer:
    """Of a policy to a `Row`: (T, D) actions, or a reply in a format of its own."""

    actions: Any = None
    own: Any = None


@dataclass(frozen=True)
class Interface:
    """What protocols and queue know of a policy, which itself may be in another process.

    Attributes:
        name: as it was given on the command line.
        inputs: an example of each input by name; empty if only the policy knows them.
        history: number of past observations that it takes.
        batches: it answers several robots in one round.
        rename: keys of clients -> inputs.
        policy_type: as LeRobot names it; None if it is none of LeRobot's.
        metadata: of its own, for openpi's clients.
        modality_config: GR00T's own: indices of time and keys, by modality; empty if it has none.
    """

    name: str
    inputs: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict, repr=False)
    history: int = 1
    batches: bool = True
    rename: Mapping[str, str] = field(default_factory=dict)
    policy_type: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    modality_config: Mapping[str, tuple[list[int], list[str]]] = field(default_factory=dict)

    @property
    def images(self) -> list[str]:
        """The names of the images, in the policy's order."""
        return [name for name, example in self.inputs.items() if is_image(example)]

    @property
    def state(self) -> str | None:
        """The name of the first input that is no image."""
        return next((name for name, example in self.inputs.items() if not is_image(example)), None)

    def prepare(self, ask: Ask) -> tuple[Any, str, Hashable]:
        """The observation as `Served.infer` takes it, the task, and the group of requests that may share a round.

        Raises:
            Refused: if the observation does not fit.
        """
        observation = dict(ask.observation)
        if not all(isinstance(key, str) for key in observation):
            raise Refused("observation", "the observation has a key that is not text")
        if not self.inputs:
            return observation, ask.task, object()  # a group of its own
        task = ask.task or take_task(observation)
        fitted = fit(observation, self.inputs, self.rename)
        return fitted, task, tuple(array.shape for array in fitted.values())


class Served(ABC):
    """A policy behind the server.

    Attributes:
        policy: for `keystone.attach`.
        interface: what others know of it.
    """

    policy: Any
    interface: Interface

    @abstractmethod
    def infer(self, rows: Sequence[Row]) -> list[Answer]:
        """One answer for each robot."""

    @abstractmethod
    def example(self, number: int = 0) -> Row:
        """For the warm-up. Two numbers may give instructions of different lengths."""

    def warming(self) -> contextlib.AbstractContextManager[None]:
        """Within this block, examples are inferred."""
        return contextlib.nullcontext()


class ServedAgent(Served):
    """An `Agent`: a LeRobot checkpoint, a policy of the study, or one of the user's."""

    def __init__(self, name: str, agent: Agent, rename: Mapping[str, str] | None = None) -> None:
        self.agent, self.policy = agent, agent.policy
        self.interface = _interface(
            name, self.policy, inputs=agent.example(), history=agent.history, rename=dict(rename or {})
        )

    def infer(self, rows: Sequence[Row]) -> list[Answer]:
        chunks = self.agent.plan([row.observations for row in rows], [row.task for row in rows])
        return [Answer(chunk) for chunk in np.asarray(chunks, np.float32)]

    def example(self, number: int = 0) -> Row:
        return Row([dict(self.interface.inputs)], "pick up the cube" + number * ", which is red")


@runtime_checkable
class Infers(Protocol):
    """A policy as openpi's: one observation of a client in, its reply out."""

    def infer(self, observation: dict[str, Any]) -> dict[str, Any]: ...


class ServedMessages(Served):
    """A policy that takes messages as its own clients send them: openpi's ``infer``, GR00T's ``get_action``, StarVLA's
    ``predict_action``. One robot in a round, since its replies belong to one client.

    Args:
        name: as it was given on the command line.
        policy: with one of these methods.
        observation: that it takes, for the warm-up; openpi's needs none.
    """

    def __init__(self, name: str, policy: Any, observation: Any = None) -> None:
        self.policy, self._observation = policy, observation
        self._call = _own_call(name, policy)
        if observation is None and not is_policy(policy):
            raise KeystoneError(
                f"{name} gives a {type(policy).__name__} without an observation, which the self-check needs: give "
                "(policy, observation)"
            )
        self.interface = _interface(name, policy, batches=False)

    def infer(self, rows: Sequence[Row]) -> list[Answer]:
        return [Answer(own=self._call(row.observations[-1])) for row in rows]

    def example(self, number: int = 0) -> Row:
        return Row([{"share": 0.25 * (number + 1)} if self._observation is None else self._observation])

    def warming(self) -> contextlib.AbstractContextManager[None]:
        if self._observation is None:  # openpi's: raw observations differ between robots
            return synthetic_input_transform(self.policy)
        return contextlib.nullcontext()


def _interface(name: str, policy: Any, **more: Any) -> Interface:
    """With what a policy says of itself."""
    metadata = getattr(policy, "metadata", None)
    modalities: Mapping[str, Any] = getattr(policy, "get_modality_config", dict)()
    return Interface(
        name,
        policy_type=getattr(getattr(policy, "config", None), "type", None),
        metadata=metadata if isinstance(metadata, Mapping) else {},
        modality_config={kind: (list(one.delta_indices), list(one.modality_keys)) for kind, one in modalities.items()},
        **more,
    )


def _own_call(name: str, policy: Any) -> Callable[[dict[str, Any]], Any]:
    if callable(getattr(policy, "infer", None)):
        return lambda message: policy.infer(message)
    if callable(getattr(policy, "get_action", None)):  # N1.5 takes the observation alone
        return lambda message: policy.get_action(**message) if "observation" in message else policy.get_action(message)
    if callable(getattr(policy, "predict_action", None)):
        return lambda message: policy.predict_action(**message)
    raise KeystoneError(
        f"{name} gives a {type(policy).__name__}: expected an Agent, or a policy with infer, get_action or predict_action"
    )


def load_served(
    name: str, device: str | None = None, trust_remote_code: bool = False, rename: Mapping[str, str] | None = None
) -> Served:
    """Load what is to be served, once.

    Args:
        name: a LeRobot checkpoint (folder or hub name), a policy of the study, or ``package.module:function`` that returns an
            `Agent`, openpi's policy, or another one that takes its clients' messages with an observation for the warm-up.
        device: of the policy; default its checkpoint's.
        trust_remote_code: see `keystone_robotics.policies.load.load_agent`.
        rename: keys of clients -> inputs of the policy.
    """
    if not is_reference(name):
        return ServedAgent(name, load_agent(name, device, trust_remote_code), rename)
    if device is not None:
        check_device(device, here=True)
    made: Any = make_named(name, (Agent, Infers, object), device=device)
    if isinstance(made, Agent):
        return ServedAgent(name, made, rename)
    policy, observation = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    return ServedMessages(name, policy, observation)
