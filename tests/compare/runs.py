"""Folders as `keystone eval` leaves them, without rolling anything out."""

import json

import numpy as np

from keystone_robotics.records import EpisodeRecord, Store


def write_run(folder, arms, hashes="state", errors=(), **identity):
    """A run with (tasks, states, repeats) outcomes for each arm.

    Args:
        folder: of the run.
        arms: outcomes by the name of the arm, in the order in which they are asked for.
        hashes: how the hashes of initial states begin.
        errors: (arm, task, episode, repeat) that ended with an error, before the first observation.
        identity: settings that are not the usual ones.
    """
    with Store(folder) as store:
        store.claim({"policy": "p", "env": "toy", "seed": 0, "max_steps": None, "execute": None, **identity})
        for arm, outcomes in arms.items():
            for task, states in enumerate(np.asarray(outcomes)):
                for repeat, successes in enumerate(states.T):
                    store.add_shard(list(_episodes(arm, task, repeat, successes, hashes, errors)), 1.0)
    (folder / "settings.json").write_text(json.dumps({"arms": list(arms)}))
    return folder


def _episodes(arm, task, repeat, successes, hashes, errors):
    for number, success in enumerate(successes):
        failed = (arm, task, number, repeat) in errors
        yield EpisodeRecord(
            arm=arm,
            task=f"task {task}",
            repeat=repeat,
            episode=number,
            initial_state="" if failed else f"{hashes} {task} {number}",
            initial_seed=number,
            noise_seed=number,
            success=bool(success) and not failed,
            steps=0 if failed else 10,
            rounds=0 if failed else 2,
            latency_ms=None if failed else (5.0 if arm == "first" else 6.0),
            error="Traceback: no camera" if failed else None,
        )
