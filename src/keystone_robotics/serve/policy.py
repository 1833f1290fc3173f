"""What is served: an `Agent`, which takes several robots in one round, or any policy that takes its own clients' messages."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from keystone_robotics.errors import KeystoneError
from keystone_robotics.integrations.openpi_warm_up import synthetic_input_transform
from keystone_robotics.named import is_reference, make_named
from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.load import check_device, load_agent
from keystone_robotics.sample.families.pi.openpi_policy import is_policy
from keystone_robotics.serve.messages import Ask
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


class Served(ABC):
    """A policy behind the server.

    Attributes:
        name: as it was given on the command line.
        policy: for `keystone.attach`.
        history: number of past observations that it takes.
        batches: it answers several robots in one round.
    """

    name: str
    policy: Any
    history: int = 1
    batches: bool = True

    @abstractmethod
    def prepare(self, ask: Ask) -> tuple[Any, str, Hashable]:
        """The observation as `infer` takes it, the task, and the group of requests that may share a round.

        Raises:
            Refused: if the observation does not fit.
        """

    @abstractmethod
    def infer(self, rows: Sequence[Row]) -> list[Answer]:
        """One answer for each robot."""

    @abstractmethod
    def example(self, number: int = 0) -> Row | None:
        """For the warm-up; None if the policy has none. Two numbers may give instructions of different lengths."""

    def warming(self) -> contextlib.AbstractContextManager[None]:
        """Within this block, examples are inferred."""
        return contextlib.nullcontext()

    @property
    def inputs(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """An example of each input by name; empty if only the policy knows them."""
        return {}

    @property
    def images(self) -> list[str]:
        """The names of the images, in the policy's order."""
        return [name for name, example in self.inputs.items() if is_image(example)]

    @property
    def state(self) -> str | None:
        """The name of the first input that is no image."""
        return next((name for name, example in self.inputs.items() if not is_image(example)), None)


class ServedAgent(Served):
    """An `Agent`: a LeRobot checkpoint, a policy of the study, or one of the user's."""

    def __init__(self, name: str, agent: Agent, rename: Mapping[str, str] | None = None) -> None:
        self.name, self.agent, self._rename = name, agent, dict(rename or {})
        self.policy, self.history = agent.policy, agent.history
        self._inputs = agent.example()

    @property
    def inputs(self) -> Mapping[str, np.ndarray[Any, Any]]:
        return self._inputs

    def prepare(self, ask: Ask) -> tuple[Any, str, Hashable]:
        observation = dict(ask.observation)
        task = ask.task or take_task(observation)
        fitted = fit(observation, self._inputs, self._rename)
        return fitted, task, tuple(array.shape for array in fitted.values())

    def infer(self, rows: Sequence[Row]) -> list[Answer]:
        chunks = self.agent.plan([row.observations for row in rows], [row.task for row in rows])
        return [Answer(chunk) for chunk in np.asarray(chunks, np.float32)]

    def example(self, number: int = 0) -> Row:
        return Row([dict(self._inputs)], "pick up the cube" + number * ", which is red")


@runtime_checkable
class Infers(Protocol):
    """A policy as openpi's: one observation of a client in, its reply out."""

    def infer(self, observation: dict[str, Any]) -> dict[str, Any]: ...


class ServedMessages(Served):
    """A policy that takes messages as its own clients send them: openpi's ``infer``, GR00T's ``get_action``, StarVLA's
    ``predict_action``. One robot in a round, since its replies belong to one client.
    """

    batches = False

    def __init__(self, name: str, policy: Any, observation: Any = None) -> None:
        self.name, self.policy, self._observation = name, policy, observation
        self._call = _own_call(name, policy)

    def prepare(self, ask: Ask) -> tuple[Any, str, Hashable]:
        return dict(ask.observation), ask.task, object()  # a group of its own

    def infer(self, rows: Sequence[Row]) -> list[Answer]:
        return [Answer(own=self._call(row.observations[-1])) for row in rows]

    def example(self, number: int = 0) -> Row | None:
        if self._observation is not None:
            return Row([self._observation])
        return Row([{"share": 0.25 * (number + 1)}]) if is_policy(self.policy) else None

    def warming(self) -> contextlib.AbstractContextManager[None]:
        if self._observation is None and is_policy(self.policy):  # openpi's: raw observations differ between robots
            return synthetic_input_transform(self.policy)
        return contextlib.nullcontext()


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
            `Agent`, a policy that takes its clients' messages, or such a policy and an observation for the warm-up.
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
