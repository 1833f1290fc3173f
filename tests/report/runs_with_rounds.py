"""Runs with kept rounds, without rolling anything out."""

import json

import numpy as np

from keystone_robotics.records import EpisodeRecord, RoundRecord, Store


def make_rounds(random, k, rounds=6, steps=16, dims=4):
    """Smooth chunks in two groups, as a policy with two ways draws them."""
    found = []
    for number in range(rounds):
        way = np.sign(random.normal(size=(k, 1, 1)) + 0.4)
        line = np.linspace(0, 1, steps).reshape(1, steps, 1)
        candidates = way * line * random.uniform(0.5, 1.5, (1, 1, dims)) + 0.02 * random.normal(
            size=(k, steps, dims)
        ).cumsum(1)
        labels = (way[:, 0, 0] < 0).astype(np.int64)
        labels ^= labels[0]  # the first is in the winning cluster
        found.append(
            RoundRecord(
                number=number, step=8 * number, candidates=candidates.astype(np.float32), labels=labels, index=0,
                synthesised=False, consensus=float((labels == 0).mean()), spread=0.5,
                actions=candidates[0, :8].astype(np.float32), dispersion=0.1 * number / rounds, median_distance=1.0,
            )
        )  # fmt: skip
    return tuple(found)


def write_run_with_rounds(
    folder, arms, tasks=("push", "pull"), episodes=8, seed=0, error="Traceback: no camera", **shape
):
    """Arms by name with (success rate, K); candidates of every round are stored unless K is None."""
    random = np.random.default_rng(seed)
    luck = random.uniform(size=(len(tasks), episodes))
    with Store(folder) as store:
        store.claim({"policy": "p", "env": "toy", "seed": 0, "max_steps": None, "execute": None})
        for arm, (rate, k) in arms.items():
            for place, task in enumerate(tasks):
                rows = []
                for number in range(episodes):
                    broken = error is not None and (arm, place, number) == (list(arms)[-1], 0, episodes - 1)
                    rows.append(
                        EpisodeRecord(
                            arm=arm, task=task, episode=number, initial_state=f"{task} {number}", initial_seed=number,
                            noise_seed=number, success=bool(luck[place, number] < rate) and not broken, steps=48, rounds=6,
                            consensus=None if k in (None, 1) else 0.7, dispersion=None if k in (None, 1) else random.uniform(),
                            latency_ms=random.uniform(5, 6) + (k or 1) / 4, error=error if broken else None,
                            kept_rounds=() if k is None or broken else make_rounds(random, k, **shape),
                        )
                    )  # fmt: skip
                store.add_shard(rows, 1.0)
    settings = {"arms": list(arms), "tasks": list(tasks), "episodes": episodes, "repeats": 1}
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder
