"""Films of stored episodes for the page: their actions are executed again in the run's environment, which draws itself."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystone_robotics.environments import Benchmark, find_benchmark
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.replay import Image, replay_episode
from keystone_robotics.records import EpisodeKey, EpisodeRecord, Store

BUDGET = 3_000_000  #: characters of all films; with 11 MB of rounds a page stays below 15 MB
FRAMES = 48  #: of an episode
WIDTH = 240  #: pixels
QUALITY = 60  #: of WebP


def film_episodes(
    episodes: Iterable[tuple[int, str, EpisodeKey]], count: int, budget: int = BUDGET
) -> tuple[dict[int, Any], list[str]]:
    """Films of the first episodes that can be drawn.

    Args:
        episodes: place in the page, folder of the run and key of each episode with kept rounds, the most interesting first.
        count: how many to film.
        budget: characters; what does not fit any more is left out.

    Returns:
        By place: environment steps, images as data URIs, notes on the replay; and notes on what could not be drawn.
    """
    found: dict[int, Any] = {}
    notes: dict[str, None] = {}
    with ExitStack() as stack:
        sources: dict[str, _Source | None] = {}
        for place, run, key in episodes:
            if len(found) == count or budget <= 0:
                break
            try:
                if run not in sources:
                    sources[run] = None  # one note for a run that cannot be replayed
                    sources[run] = _Source.of(Path(run), stack)
                if (source := sources[run]) is None:
                    continue
                film = _film(source, key)
            except Exception as error:  # simulators fail in many ways, and the rest of the page needs none
                notes[f"no film: {' '.join(str(error).split())[:300]}"] = None
                continue
            budget -= sum(map(len, film["images"]))
            if budget >= 0:
                found[place] = film
    if len(found) < count and budget <= 0:
        notes[f"{len(found)} films fill the page; it was asked for {count}"] = None
    return found, list(notes)


@dataclass(frozen=True)
class _Source:
    """A run whose episodes can be replayed."""

    benchmark: Benchmark
    store: Store
    records: dict[EpisodeKey, EpisodeRecord]

    @staticmethod
    def of(run: Path, stack: ExitStack) -> _Source:
        try:
            settings = json.loads((run / "settings.json").read_text(encoding="utf-8"))
            env, max_steps = settings["env"], settings.get("max_steps")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise KeystoneError(f"{run / 'settings.json'} names no environment") from None
        store = stack.enter_context(Store(run))
        return _Source(find_benchmark(env, max_steps), store, {one.key: one for one in store.episodes()})


def _film(source: _Source, key: EpisodeKey) -> dict[str, Any]:
    record = source.records[key]
    every = max(1, math.ceil(record.steps / FRAMES))
    replay = replay_episode(source.benchmark, record, source.store.rounds(key), every)
    if not replay.frames:
        raise KeystoneError(replay.notes[0])
    return {
        "step": [step for step, _ in replay.frames],
        "images": [_data_uri(image) for _, image in replay.frames],
        "notes": list(replay.notes),
    }


def _data_uri(image: Image) -> str:
    from PIL import Image as Picture

    picture = Picture.fromarray(image)
    picture.thumbnail((WIDTH, WIDTH))
    written = io.BytesIO()
    picture.save(written, "WEBP", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(written.getvalue()).decode()}"
