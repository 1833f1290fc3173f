"""Videos of one episode under two arms, side by side: a GIF and a strip of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keystone_robotics.environments.benchmark import Benchmark
from keystone_robotics.errors import KeystoneError

Image = NDArray[np.uint8]
CAPTION = 13  #: pixels of the letters of a caption
BANNER = 2 * CAPTION  #: pixels above the images, for a caption


class NoPicture(KeystoneError):
    """Images cannot be rendered, for example without OpenGL; the rest of a report does not need them."""


def film_episode(benchmark: Benchmark, task: str, initial_seed: int, actions: NDArray[Any], every: int) -> list[Image]:
    """Replay actions (n, A) and render the initial state, every ``every``-th step and the last one.

    Raises:
        NoPicture: if the simulator cannot render.
    """
    env = benchmark.make(task, render=True)
    try:
        env.reset(seed=initial_seed)
        frames = [_render(env)]
        for number, action in enumerate(actions, 1):
            env.step(action)
            if number % every == 0 or number == len(actions):
                frames.append(_render(env))
    finally:
        env.close()
    return frames


def _render(env: Any) -> Image:
    try:
        return np.asarray(env.render(), np.uint8)
    except Exception as error:
        raise NoPicture(f"cannot render images: {error}") from error


def save_film(path: Path, films: Sequence[Sequence[Image]], captions: Sequence[str], milliseconds: int = 120) -> None:
    """Write a GIF with the films side by side; the shorter one holds its last frame."""
    length = max(map(len, films))
    frames = [_beside([film[min(number, len(film) - 1)] for film in films], captions) for number in range(length)]
    first, *rest = frames
    times = [milliseconds] * (length - 1) + [2000]  # hold the last frame
    first.save(path, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)


def save_strip(
    path: Path,
    films: Sequence[Sequence[Image]],
    captions: Sequence[str],
    every: int,
    steps: Sequence[int],
    count: int = 6,
) -> None:
    """Write a PNG with one row per film of ``count`` evenly spaced frames, each with its step; ``steps``: of each episode."""
    from PIL import Image as Picture

    rows = []
    for film, caption, end in zip(films, captions, steps, strict=True):
        numbers = np.linspace(0, len(film) - 1, min(count, len(film))).round().astype(int)
        shown = [_at_step(film[number], min(number * every, end)) for number in numbers]
        shown += [shown[-1]] * (count - len(numbers))
        rows.append(np.asarray(_captioned(np.concatenate(shown, axis=1), caption, 2 * CAPTION)))
    Picture.fromarray(np.concatenate(rows, axis=0)).save(path, optimize=True)


def _at_step(image: Image, step: int) -> Image:
    """The image with its step in the lower left corner."""
    from PIL import Image as Picture
    from PIL import ImageDraw, ImageFont

    picture = Picture.fromarray(image)
    draw, place, font = ImageDraw.Draw(picture), (6, image.shape[0] - 8), ImageFont.load_default(1.6 * CAPTION)
    text = f"step {step}"
    x0, y0, x1, y1 = draw.textbbox(place, text, font=font, anchor="lb")
    draw.rectangle((x0 - 4, y0 - 4, x1 + 4, y1 + 4), fill="white")
    draw.text(place, text, fill="#222222", font=font, anchor="lb")
    return np.asarray(picture)


def _beside(images: Sequence[Image], captions: Sequence[str]) -> Any:
    from PIL import Image as Picture

    parts = [np.asarray(_captioned(image, caption)) for image, caption in zip(images, captions, strict=True)]
    return Picture.fromarray(np.concatenate(parts, axis=1)).quantize(128)


def _captioned(image: Image, caption: str, size: int = CAPTION) -> Any:
    """The image with a caption above it, in letters of this size; a strip is shown at half its size or less."""
    from PIL import Image as Picture
    from PIL import ImageDraw, ImageFont

    height, width = image.shape[:2]
    picture = Picture.new("RGB", (width, height + 2 * size), "white")
    picture.paste(Picture.fromarray(image), (0, 2 * size))
    ImageDraw.Draw(picture).text((8, size // 2), caption, fill="#222222", font=ImageFont.load_default(size))
    return picture
