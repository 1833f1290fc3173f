"""What ``keystone inspect`` found, as numbers, a page and Rerun recordings."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics import __version__
from keystone_robotics.evaluate.demonstrations import Frame
from keystone_robotics.report.page.write import content_hash
from keystone_robotics.view.live import about
from keystone_robotics.view.picture import Lanes, Picture, draw
from keystone_robotics.view.recording import Recording

NOT_SUCCESS = (
    "Distance to a demonstration is not success: a policy may solve the task in another way, an average of two good ways may "
    "solve it in none, and averaging lowers this distance by itself. It shows where to look, not which arm to use."
)
WORST = 10  #: frames that are listed
DRAWN = {"candidates": 32, "steps": 32, "dimensions": 6}  #: at most, of a worst frame: the page stays small
CANDIDATES_KEY = (
    "Coloured by cluster, blue is the winning one; thick: the selected chunk; dashed: the demonstrator, over the steps that "
    "are executed."
)
SAMPLES = 2000  #: of the bootstrap over episodes


def summarise(frames: Sequence[Frame], dims: Sequence[str], source: dict[str, Any]) -> dict[str, Any]:
    """All numbers, for JSON and the page."""
    arms = list(frames[0].distances)
    table = np.array([[one.distances[arm] for arm in arms] for one in frames])
    episodes = np.array([one.episode for one in frames])
    known = np.isfinite(table).all(1)
    rows = []
    for place, arm in enumerate(arms):
        gap = table[known, place] - table[known, 0]
        rows.append(
            {
                "arm": arm,
                "distance": float(table[known, place].mean()) if known.any() else None,
                "difference": float(gap.mean()) if known.any() and place else None,
                "interval": _interval(gap, episodes[known]) if known.any() and place else None,
            }
        )
    spread = np.mean([one.spread for one in frames], axis=0)
    return {
        **source,
        "version": __version__,
        "frames": len(frames),
        "compared": int(known.sum()),
        "not_compared": _why_not(int((~known).sum()), len(frames)),
        "note": NOT_SUCCESS,
        "arms": rows,
        "dimensions": [{"name": name, "spread": _finite(value)} for name, value in zip(dims, spread, strict=True)],
        "episodes": [
            {
                "episode": int(number),
                "frames": int((episodes == number).sum()),
                "dispersion": float(np.mean([one.dispersion for one in frames if one.episode == number])),
                "consensus": float(np.mean([one.consensus for one in frames if one.episode == number])),
                "series": [[one.frame, round(one.dispersion, 4)] for one in frames if one.episode == number],
            }
            for number in np.unique(episodes)
        ],
        "worst": [
            {
                "episode": one.episode,
                "frame": one.frame,
                "dispersion": one.dispersion,
                "consensus": one.consensus,
                "ways": one.ways,
                "dimension": dims[int(np.argmax(one.spread))],
                "distance": _finite(one.distances[arms[-1]]),
            }
            for one in worst_frames(frames)
        ],
        "ways": {
            str(number): sum(one.ways == number for one in frames) for number in sorted({one.ways for one in frames})
        },
    }


def worst_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The frames with the largest dispersion."""
    return sorted(frames, key=lambda one: -one.dispersion)[:WORST]


def _finite(value: float) -> float | None:
    """What JSON has a number for."""
    return float(value) if np.isfinite(value) else None


def _why_not(count: int, frames: int) -> str | None:
    if count == 0:
        return None
    return f"{count} of {frames} frames are not compared: an action of the policy or of the dataset is not finite"


def _interval(values: NDArray[np.float64], episodes: NDArray[np.int64]) -> tuple[float, float] | None:
    """95 % interval of a mean, by drawing whole episodes; None for one episode."""
    names = np.unique(episodes)
    if len(names) < 2:
        return None
    sums = np.array([values[episodes == name].sum() for name in names])
    counts = np.array([(episodes == name).sum() for name in names])
    drawn = np.random.default_rng(0).integers(len(names), size=(SAMPLES, len(names)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def arm_rows(found: dict[str, Any]) -> list[list[str]]:
    """The table of arms as text, heading first."""
    rows = [["arm", "distance", "to the first", "95 % interval"]]
    for one in found["arms"]:
        interval = one["interval"]
        rows.append([
            one["arm"], _number(one["distance"]), _number(one["difference"], "+.3f"),
            "" if interval is None else f"[{interval[0]:+.3f}, {interval[1]:+.3f}]",
        ])  # fmt: skip
    return rows


def worst_rows(found: dict[str, Any]) -> list[list[str]]:
    """The table of the frames with the largest disagreement, heading first."""
    rows = [
        ["episode", "frame", "dispersion", "consensus", "ways", "most in", f"distance of {found['arms'][-1]['arm']}"]
    ]
    return rows + [
        [str(one["episode"]), str(one["frame"]), _number(one["dispersion"]), _number(one["consensus"]), str(one["ways"]),
         one["dimension"], _number(one["distance"])]
        for one in found["worst"]
    ]  # fmt: skip


def dimension_rows(found: dict[str, Any]) -> list[list[str]]:
    """The table of dimensions, the one with the largest spread first, heading first."""
    ordered = sorted(found["dimensions"], key=lambda one: -(one["spread"] or 0.0))
    return [["dimension", "spread of the candidates"], *([one["name"], _number(one["spread"])] for one in ordered)]


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else format(value, form)


def page(found: dict[str, Any], frames: Sequence[Frame]) -> str:
    """One self-contained page without any script: what `summarise` found in these frames."""
    style = files("keystone_robotics.report.page").joinpath("page.css").read_text("utf-8")
    title = f"{found['checkpoint']} on {found['dataset']}: where the policy disagrees with itself"
    ways = "; ".join(f"{number} way{'s'[: number != '1']}: {count}" for number, count in found["ways"].items())
    strips = "".join(_strip(one) for one in found["episodes"])
    names = [one["name"] for one in found["dimensions"]]
    opened = "".join(_candidates(one, names, place == 0) for place, one in enumerate(worst_frames(frames)))
    distance = (
        "How far each arm's chunk is from the demonstrator's, over the executed steps, in standard deviations of the "
        f"demonstrations; {found['compared']} frames, intervals by drawing episodes"
    )
    if found["not_compared"]:
        distance += f". {found['not_compared']}"
    policy = f"default-src 'none'; style-src {content_hash(style)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title><style>{style}</style></head><body>
<header><p class="eyebrow">KeyStone {html.escape(found["version"])} · {found["frames"]} frames of {
        len(found["episodes"])
    }
episodes · candidates of {html.escape(found["main"])}</p><h1>{html.escape(title)}</h1></header><main>
<section><p class="note">{html.escape(NOT_SUCCESS)}</p>
{_table(distance, arm_rows(found))}</section>
<section><h2>Where</h2><p>Clusters of the candidates, frames: {html.escape(ways)}.</p>
<div class="panels">{strips}</div></section>
<section><h2>Worst frames</h2>{_table("Frames with the largest dispersion", worst_rows(found))}
<p>Each opens: its candidates over the steps of the chunk, one panel for each dimension, the most disagreed first.
{CANDIDATES_KEY}</p>{opened}</section>
<section><h2>Which dimensions</h2>
{_table("Standard deviation of the candidates over that of the demonstrations", dimension_rows(found))}</section>
</main></body></html>
"""


def _table(caption: str, rows: Sequence[Sequence[str]]) -> str:
    heading, *body = rows
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in heading)
    lines = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>{"".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in body
    )
    return (
        f'<div class="wide"><table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _strip(one: dict[str, Any]) -> str:
    """Dispersion over the frames of an episode."""
    width, height, left, top = 540, 84, 46, 20
    last = max(1, max(frame for frame, _ in one["series"]))
    points = " ".join(
        f"{left + (width - left - 10) * frame / last:.1f},{top + 44 * (1 - value):.1f}"
        for frame, value in one["series"]
    )
    name = f"Episode {one['episode']}: dispersion {one['dispersion']:.2f}, consensus {one['consensus']:.2f}"
    ticks = "".join(
        f'<line class="grid" x1="{left}" x2="{width - 10}" y1="{top + 44 * (1 - y)}" y2="{top + 44 * (1 - y)}"></line>'
        f'<text x="{left - 6}" y="{top + 44 * (1 - y) + 4}" text-anchor="end">{y}</text>'
        for y in (0, 1)
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(name)}">{ticks}'
        f'<text x="{left}" y="12">{html.escape(name)}</text><polyline class="series" points="{points}"></polyline>'
        f'<text x="{width - 10}" y="{height - 4}" text-anchor="end">frame {last}</text></svg>'
    )


def _candidates(one: Frame, names: Sequence[str], opened: bool) -> str:
    """The candidates of a frame, one panel for each dimension; at most `DRAWN` of them."""
    number = f"{one.ways} way{'s' if one.ways > 1 else ''}"
    title = f"Episode {one.episode}, frame {one.frame}: dispersion {one.dispersion:.2f}, {number}"
    dims = np.argsort(-one.spread)[: DRAWN["dimensions"]]
    shown = dict.fromkeys([one.index, *range(len(one.candidates))])
    some = list(shown)[: DRAWN["candidates"]]
    left_out = [
        f"{what} {drawn} of {count}"
        for what, drawn, count in (
            ("candidates", len(some), len(shown)),
            ("dimensions", len(dims), len(names)),
        )
        if drawn < count
    ]
    notes = [f"Drawn: {', '.join(left_out)}."] * bool(left_out)
    if one.physical is None:
        notes.append("In the policy's own units, without the demonstrator: relative actions are not converted.")
    note = "".join(f'<p class="quiet small">{text}</p>' for text in notes)
    panels = "".join(_panel(one, some, int(dim), names[dim]) for dim in dims)
    return (
        f"<details{' open' * opened}><summary>{html.escape(title)}</summary>{note}"
        f'<div class="panels">{panels}</div></details>'
    )


def _panel(one: Frame, some: Sequence[int], dim: int, name: str) -> str:
    width, height, left, bottom, top = 330, 170, 58, 24, 22
    candidates, selected = (one.candidates, one.chunk) if one.physical is None else (one.physical, one.planned)
    length = candidates.shape[1]
    every = -(-length // DRAWN["steps"])
    lines = [*candidates[some, :, dim], selected[:, dim]]
    lines += [one.demonstrated[:, dim]] * (one.physical is not None)
    values = np.concatenate(lines)
    low, high = (
        np.min(values[np.isfinite(values)], initial=np.inf),
        np.max(values[np.isfinite(values)], initial=-np.inf),
    )
    if not low < high:
        low, high = (low - 1, low + 1) if np.isfinite(low) else (0.0, 1.0)

    def line(series: NDArray[Any], attributes: str) -> str:
        steps = sorted({*range(0, len(series), every), len(series) - 1})
        places = " ".join(
            f"{left + (width - left - 12) * step / max(length - 1, 1):.0f},"
            f"{top + (height - top - bottom) * (high - series[step]) / (high - low):.1f}"
            for step in steps
            if np.isfinite(series[step])
        )
        return f'<polyline {attributes} points="{places}"></polyline>'

    clusters = (one.labels[number] % 6 if one.labels[number] >= 0 else 5 for number in some)
    looks = [f'class="path c{cluster}" opacity="0.55"' for cluster in clusters]
    looks += ['class="path ink"', 'class="ink" fill="none" stroke-width="2" stroke-dasharray="5 4"'][
        : len(lines) - len(some)
    ]
    drawn = "".join(map(line, lines, looks))
    ticks = "".join(
        f'<text x="{left - 6}" y="{y}" text-anchor="end">{value:.3g}</text>'
        for value, y in ((high, top + 4), (low, height - bottom + 4))
    )
    label = f"{name}: {len(some)} candidates over {length} steps"
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(label)}">'
        f'<text x="{left}" y="12">{html.escape(name)}</text>{ticks}{drawn}'
        f'<text x="{width - 12}" y="{height - 6}" text-anchor="end">step {length - 1}</text></svg>'
    )


def _save(path: Path, stream: Any, shown: Any) -> None:
    stream.save(path, default_blueprint=shown)


def record_episodes(
    frames: Sequence[Frame], folder: Path, dims: Sequence[str], fps: float, worst: int = 3
) -> list[Path]:
    """Write the episodes with the largest mean dispersion as recordings; returns their paths.

    Args:
        frames: all of them.
        folder: where to write ``episode_N.rrd``.
        dims: names of the dimensions.
        fps: frames in a second.
        worst: how many episodes.
    """
    by_episode: dict[int, list[Frame]] = {}
    for one in frames:
        by_episode.setdefault(one.episode, []).append(one)
    chosen = sorted(by_episode, key=lambda name: -np.mean([one.dispersion for one in by_episode[name]]))[:worst]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number in chosen:
        own = by_episode[number]
        path = folder / f"episode_{number}.rrd"
        lanes = Lanes.around([one.candidates for one in own], 0.05)
        text = f"# Episode {number}\n\n{about(len(own[0].candidates), True, 'the selected chunk')}\n\n{NOT_SUCCESS}"
        recording = Recording(
            partial(_save, path), path.stem, text, lanes, dims,
            camera=bool(own[0].images), actions="demonstrated actions",
        )  # fmt: skip
        for place, one in enumerate(own):
            recording.add(
                Picture(
                    number=place, frame=one.frame, seconds=one.frame / fps, actions=one.demonstrated[:1],
                    consensus=one.consensus, dispersion=one.dispersion,
                    **draw(one.candidates, one.labels, one.index, one.chunk, None, lanes),
                )
            )  # fmt: skip
        recording.flush()
        for one in own:
            for image in list(one.images.values())[:1]:
                recording.add_image(one.frame, one.frame / fps, image)
        recording.close()
        written.append(path)
    return written
