"""Figures and films."""

import numpy as np
import pytest
from PIL import Image

from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.graphics import no_graphics
from keystone_robotics.evaluate.branch import Branches
from keystone_robotics.evaluate.config import config_from
from keystone_robotics.records import EpisodeRecord, RoundRecord
from keystone_robotics.report.style import save
from keystone_study.report.demo import first_changed, separation, verdicts
from keystone_study.report.film import BANNER, NoPicture, film_episode, save_film, save_strip
from keystone_study.report.outcomes import draw_outcomes


def record(k=8, synthesised=False):
    random = np.random.default_rng(0)
    labels = np.array([0] * 5 + [1] * 2 + [-1])
    return RoundRecord(3, 24, random.normal(size=(k, 16, 4)).astype(np.float32), labels, 2, synthesised, 5 / 7, 0.4,
                       np.zeros((8, 4), np.float32))  # fmt: skip


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("outcomes", ["mixed", "all", "none"])
def test_the_figure_of_a_round(dims, outcomes, tmp_path):
    random = np.random.default_rng(1)
    success = {"mixed": np.arange(8) % 2 == 0, "all": np.ones(8, bool), "none": np.zeros(8, bool)}[outcomes]
    paths = [random.normal(size=(9, dims)).cumsum(0).astype(np.float32) for _ in range(8)]
    figure = draw_outcomes(record(synthesised=outcomes == "all"), Branches(success, np.full(8, 99), paths), "push-v3")
    png, _ = save(figure, tmp_path, "round")
    with Image.open(png) as image:
        assert len(set(image.convert("RGB").resize((80, 40)).get_flattened_data())) > 20
    shown = 7  # the eighth was not finite
    won = int(success[:shown].sum())
    counts = {f"{won} then succeeded": won, f"{shown - won} then failed": shown - won}
    marked = "nearest to the executed" if outcomes == "all" else "chosen"
    assert {text.get_text() for text in figure.axes[0].texts} == {
        marked,
        *(name for name, count in counts.items() if count),
    }


def test_a_film_and_a_strip(tmp_path):
    films = [[np.full((64, 64, 3), 10 * n, np.uint8) for n in range(length)] for length in (5, 3)]
    save_film(tmp_path / "film.gif", films, ["K = 1: failed", "KeyStone: done"])
    save_strip(tmp_path / "strip.png", films, ["K = 1: failed", "KeyStone: done"], 5, [12, 9], count=4)
    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.size) == (5, (128, 64 + BANNER))
        film.seek(4)
        last = np.asarray(film.convert("RGB"))[BANNER + 32]
        assert abs(int(last[32, 0]) - 40) < 8  # the last frame of the longer
        assert abs(int(last[96, 0]) - 20) < 8  # the shorter one waits at its end
    with Image.open(tmp_path / "strip.png") as strip:
        assert strip.size == (256, 2 * (64 + 2 * BANNER))


def test_filming_follows_the_actions():
    frames = film_episode(find_benchmark("pusht"), "pusht", 3, np.full((7, 2), 100.0, np.float32), every=3)
    assert len(frames) == 4  # the beginning, after 3 and 6, the end
    assert frames[0].dtype == np.uint8
    assert (frames[0] != frames[-1]).any()


def test_no_picture_is_an_error_of_its_own():
    class Blind:
        def render(self):
            raise no_graphics("no library")

        def reset(self, seed):
            pass

        def close(self):
            pass

    class Dark:
        def make(self, task, render):
            return Blind()

    with pytest.raises(NoPicture, match="cannot render images: MuJoCo cannot render"):
        film_episode(Dark(), "any", 0, np.zeros((1, 1)), 1)


def row(arm, episode, success, state=None):
    return EpisodeRecord("push-v3", episode, success, arm=arm, initial_state=state or f"s{episode}", latency_ms=2.0)


def test_pairs_are_the_same_state():
    rows = [row("a", 0, True), row("b", 0, False), row("a", 1, True), row("b", 1, True, "elsewhere"), row("a", 2, True)]
    pair = first_changed(rows, "a", "b")
    assert (pair.one.episode, pair.many.success) == (0, False)
    assert first_changed(rows[2:], "a", "b") is None


def test_choices_among_several_are_compared_with_every_single_sample():
    arms = ["first", "first:temperature=0.6", "core-mean:k=16", "keystone:k=16"]
    settings = config_from({"policy": "p", "env": "e", "tasks": ["push-v3"], "arms": arms, "episodes": 30})
    good = {"first": 10, "first:temperature=0.6": 24, "core-mean:k=16": 30, "keystone:k=16": 25}
    rows = [row(arm, episode, episode < good[arm]) for arm in arms for episode in range(30)]
    *mean, plain, cooler = verdicts(rows, settings)
    assert [sentence.partition(": it is")[0] for sentence in mean] == [
        "core-mean:k=16 against first",
        "core-mean:k=16 against first:temperature=0.6",
    ]
    assert plain.startswith("keystone:k=16 against first: it is better: +50.0 points")
    assert cooler.startswith("keystone:k=16 against first:temperature=0.6: no clear difference: +3.3 points")


def test_separation_of_equal_candidates_is_nothing():
    assert separation(np.zeros((4, 2, 2), np.float32), np.array([True, False, True, False])) == 0.0
