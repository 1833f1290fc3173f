"""A policy on the frames of a LeRobotDataset, for robots without a simulator: where it disagrees with itself, and how far its
choices are from the demonstrator's. Distance to a demonstration is not success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from keystone_robotics.attachment import attach, detach
from keystone_robotics.environments.benchmark import Array
from keystone_robotics.errors import KeystoneError
from keystone_robotics.handle import RoundEvent
from keystone_robotics.policies.agent import Agent
from keystone_robotics.sample.noise import derive_seed
from keystone_robotics.spec import Spec

#: The policy as it is, the two free controls, the paper's rule and the one that did best in docs/study.md.
DEFAULT_ARMS = ("first", "first:steps=2", "first:temperature=0.6", "keystone:k=16", "core-mean:k=16")
TASK = "task"


@dataclass(frozen=True)
class Frame:
    """One frame, as the arm with the most candidates sees it.

    Attributes:
        episode: of the dataset.
        frame: in the episode.
        candidates: (K, T, D) from the next step on, without padding, in the units of the policy's sampler.
        physical: (K, T, D) the same in the units of the demonstrations; None for relative actions.
        planned: (T, D) the selected chunk in the units of the demonstrations.
        labels: (K,) cluster of each candidate.
        index: the selected one, or the nearest to a synthesised chunk.
        chunk: (T, D) the selected chunk, like the candidates; none of them if it was averaged.
        consensus: of the candidates.
        dispersion: of the candidates.
        ways: number of clusters.
        spread: (D,) standard deviation of the valid candidates in each dimension, over that of the demonstrations.
        distances: for each arm, how far its chunk is from the demonstrator's: root mean square over the executed steps and all
            dimensions, in standard deviations of the demonstrations. Where the episode ends before, over the steps that are
            left; nan if an action is not finite.
        demonstrated: (n, D) what the demonstrator did, at most the executed steps.
        images: camera images (H, W, 3) by LeRobot's key.
    """

    episode: int
    frame: int
    candidates: Array
    physical: Array | None
    planned: Array
    labels: NDArray[np.int64]
    index: int
    chunk: Array
    consensus: float
    dispersion: float
    ways: int
    spread: NDArray[np.float64]
    distances: dict[str, float]
    demonstrated: Array
    images: dict[str, NDArray[np.uint8]]


def choose_frames(dataset: Any, frames: int) -> list[int]:
    """Indices of about ``frames`` frames, spread evenly over the dataset."""
    return [int(one) for one in np.unique(np.linspace(0, len(dataset) - 1, min(frames, len(dataset))).round())]


def inspect_frames(
    agent: Agent,
    dataset: Any,
    arms: Sequence[Spec],
    indices: Sequence[int],
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Frame]:
    """The frames, one after the other.

    All arms have the same noise: candidate j of one is candidate j of another with the same steps and temperature.

    Args:
        agent: of a LeRobot checkpoint.
        dataset: see `keystone_robotics.evaluate.dataset.open_dataset`.
        arms: what is compared; the first is the policy as it is.
        indices: of the frames in the dataset.
        seed: of the noise.
        progress: called with the number of frames done.

    Raises:
        KeystoneError: if the policy does not take these observations.
    """
    if not hasattr(agent, "plan_batches"):
        raise KeystoneError(f"{type(agent).__name__} does not take frames of a dataset: expected a LeRobot checkpoint")
    scale = _scale(dataset)
    main = max(arms, key=lambda arm: arm.most_k or 0)
    begins = {}
    for done, index in enumerate(indices, 1):
        item = dataset[index]
        episode, frame = int(item["episode_index"]), int(item["frame_index"])
        begins[episode] = index - frame
        # one frame of history after the other, not before the beginning of the episode
        history = {age: dataset[max(begins[episode], index + 1 - age)] for age in range(2, agent.history + 1)}
        batches = {age: _batch(one) for age, one in {1: item, **history}.items()}
        noise = derive_seed(seed, episode, frame)
        steps = agent.execute
        demonstrated = _demonstration(dataset, index, episode, steps)
        distances: dict[str, float] = {}
        for arm in arms:
            chunk, event = _plan(agent, arm, batches, noise, check=done == 1)
            if chunk.shape[-1] != demonstrated.shape[-1]:
                raise KeystoneError(
                    f"the policy's actions have {chunk.shape[-1]} dimensions, the dataset's {demonstrated.shape[-1]}"
                )
            gap = (chunk[: len(demonstrated)] - demonstrated) / scale  # an episode may end before the executed steps do
            distances[str(arm)] = float(np.sqrt(np.mean(gap**2)))
            if arm == main:
                selection, window = event.selection, event.window
                start, dims = (0, None) if window is None else (window.start, window.dims)
                real = event.candidates[0].float().cpu().numpy()[:, start:, :dims]
                selected = torch.as_tensor(selection.chunk[0]).float().cpu().numpy()[start:, :dims]
                physical, planned = agent.in_env_units(real, {}), chunk
                labels = np.asarray(selection.labels[0])
                spread = (real if physical is None else physical)[labels >= 0, :steps].std(0).mean(0) / scale
        yield Frame(
            episode, frame, real, physical, planned, labels, int(selection.index[0]), selected,
            float(selection.consensus[0]), float(selection.dispersion[0]), len(set(labels[labels >= 0].tolist())),
            np.asarray(spread, np.float64), distances, demonstrated, _images(item),
        )  # fmt: skip
        progress(done)


def _plan(
    agent: Any, arm: Spec, batches: dict[int, dict[str, Any]], noise: int, check: bool
) -> tuple[Array, RoundEvent]:
    rounds: list[RoundEvent] = []
    handle = attach(agent.policy, arm, check=check)
    handle.subscribe(rounds.append)
    try:
        with handle.seeded(noise):
            chunk = agent.plan_batches(lambda age: dict(batches[age]))[0]
    except (KeyError, RuntimeError) as error:
        given = ", ".join(key for key in batches[1] if key != TASK)
        raise KeystoneError(
            f"the policy cannot act on frames with {given}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    finally:
        detach(agent.policy)
    return chunk, rounds[-1]


def _batch(item: dict[str, Any]) -> dict[str, Any]:
    """One frame as a batch of one, with LeRobot's keys."""
    batch = {key: value[None] for key, value in item.items() if key.startswith("observation")}
    return {**batch, TASK: [item.get(TASK, "")]}


def _demonstration(dataset: Any, index: int, episode: int, steps: int) -> Array:
    """(n, D) the actions from a frame on, until the episode ends."""
    rows = dataset.hf_dataset[index : index + steps]
    own = [int(one) == episode for one in rows["episode_index"]]
    actions = torch.stack([torch.as_tensor(action) for action, mine in zip(rows["action"], own) if mine])
    return actions.float().reshape(len(actions), -1).numpy()


def _scale(dataset: Any) -> NDArray[np.float64]:
    """(D,) standard deviation of the demonstrated actions; 1 for a dimension that never moves."""
    deviation = np.asarray(dataset.meta.stats["action"]["std"], np.float64).reshape(-1)
    return np.where(deviation > 1e-8, deviation, 1.0)


def _images(item: dict[str, Any]) -> dict[str, NDArray[np.uint8]]:
    found = {}
    for key, value in item.items():
        if key.startswith("observation.image") and getattr(value, "ndim", 0) == 3:
            found[key] = (value.clamp(0, 1) * 255).byte().permute(1, 2, 0).contiguous().numpy()
    return found
