"""Calibration: the rate of false alarms is what was asked for, too few episodes are refused, and no limit without a signal."""

import json

import numpy as np
import pytest
from clouds import run_of

from keystone_robotics.errors import KeystoneError
from keystone_robotics.monitor import Calibration, NoSeparation, calibrate, detect
from keystone_robotics.monitor.calibration import find_direction, too_few
from keystone_robotics.monitor.conformal import band_limit, constant_limit, needed, smooth
from keystone_robotics.monitor.detection import first_alarm
from keystone_robotics.monitor.separation import Series, auroc


def walks(random, n, level=0.0):
    """Scores of episodes of different lengths: correlated over rounds, rising over an episode, nan in the first round."""
    found = []
    for _ in range(n):
        length = random.integers(4, 15)
        steps = 0.3 * random.normal(size=length).cumsum() + 0.1 * np.arange(length) + random.normal() + level
        steps[0] = np.nan
        found.append(steps)
    return found


@pytest.mark.parametrize(("limit", "n"), [(constant_limit, 39), (band_limit, 78)])
def test_the_false_alarm_rate_is_nominal(limit, n):
    random = np.random.default_rng(0)
    alpha, alarmed, fresh = 0.1, [], 25
    for _ in range(250):
        made = limit(walks(random, n), alpha, 3)
        alarm = Calibration("dispersion", "high", "band", made, 3, alpha, n)
        alarmed.append(np.mean([first_alarm(alarm, one) is not None for one in walks(random, fresh)]))
    # exact for continuous scores: ⌊(m + 1) α⌋ / (m + 1) with m = 39 episodes behind the quantile
    exact = np.floor(40 * alpha) / 40
    error = np.std(alarmed) / np.sqrt(len(alarmed))
    assert abs(np.mean(alarmed) - exact) < 3 * error
    assert error < 0.006


def test_a_band_follows_the_time_in_the_episode():
    random = np.random.default_rng(0)
    series = [np.linspace(0, 1, 10) + 0.05 * random.normal(size=10) for _ in range(60)]
    made = band_limit(series, 0.1, 1)
    assert len(made) == 10
    assert made[0] < 0.4 < made[9]
    alarm = Calibration("dispersion", "high", "band", made, 1, 0.1, 60)
    assert alarm.limit_at(50) == made[9]
    early = series[0].copy()
    early[1] = 0.6  # usual at the end, not at the beginning
    assert first_alarm(alarm, early) == 1
    (highest,) = constant_limit(series, 0.1, 1)
    assert first_alarm(Calibration("dispersion", "high", "constant", (highest,), 1, 0.1, 60), early) is None


@pytest.mark.parametrize(
    ("n", "rate", "says"), [(18, 0.05, "19 are needed"), (5, 0.1, "9 are needed"), (0, 0.2, "4 are needed")]
)
def test_too_few_successes_are_refused_with_the_number_needed(n, rate, says):
    run = run_of(walks(np.random.default_rng(0), n))
    with pytest.raises(KeystoneError, match=says):
        calibrate(run, "dispersion", false_alarms=rate)
    more = run_of(walks(np.random.default_rng(0), needed(rate)))
    assert calibrate(more, "dispersion", false_alarms=rate).n == needed(rate)
    with pytest.raises(KeystoneError, match=f"{max(2 * needed(rate), 6)} are needed"):
        calibrate(more, "dispersion", false_alarms=rate, kind="band")


def test_a_rate_that_is_none_is_refused():
    for rate in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(KeystoneError, match="expected a rate"):
            calibrate(run_of(walks(np.random.default_rng(0), 30)), "dispersion", false_alarms=rate)


def test_the_direction_is_found_and_failures_may_be_less_dispersed():
    random = np.random.default_rng(0)
    for level, direction in ((1.5, "high"), (-1.5, "low")):
        series = [*walks(random, 60), *walks(random, 40, level)]
        made = calibrate(run_of(series, [True] * 60 + [False] * 40), "dispersion", false_alarms=0.1)
        assert made.direction == direction
        assert made.auroc[1] > 0.5
        assert (made.n, made.failures) == (60, 40)
        fresh = [*walks(random, 200), *walks(random, 200, level)]
        found = detect(run_of(fresh, [True] * 200 + [False] * 200), made)
        assert found.false_alarms.value < 0.2 < found.true_positives.value
        assert found.true_negatives.value == pytest.approx(1 - found.false_alarms.value)
        assert 0 < found.left.value < 1


def test_no_threshold_is_given_where_no_score_tells_failures():
    random = np.random.default_rng(1)
    run = run_of(walks(random, 80), [True] * 50 + [False] * 30)
    with pytest.raises(NoSeparation, match=r"AUROC 0\.\d+ \[.*no other score does.*--force"):
        calibrate(run, "dispersion")
    forced = calibrate(run, "dispersion", force=True)
    assert forced.auroc[1] <= 0.5
    assert forced.direction == "high"  # not the one that is better by chance


def test_the_other_score_that_does_is_named():
    random = np.random.default_rng(1)
    outcomes = [True] * 50 + [False] * 30
    run = run_of(walks(random, 80), outcomes)
    for one, values in zip(run.episodes, [*walks(random, 50), *walks(random, 30, 2.0)]):
        one.scores["stac"] = values
    with pytest.raises(NoSeparation, match="--score stac does"):
        calibrate(run, "dispersion")
    assert calibrate(run, "stac").score == "stac"


def test_without_failures_nothing_is_tested():
    made = calibrate(run_of(walks(np.random.default_rng(0), 30)), "dispersion")
    assert (made.failures, made.auroc, made.direction) == (0, None, "high")


def test_a_score_that_never_says_anything_is_refused():
    silent = [[np.nan] * 5] * 30
    for outcomes in (None, [True] * 20 + [False] * 10):  # failures are not what it lacks
        with pytest.raises(KeystoneError, match=r"says nothing in the rounds of run: .* plan no common step"):
            calibrate(run_of(silent, outcomes, score="stac"), "stac")
    with pytest.raises(KeystoneError, match="its rounds have K = 1, and the score needs 2 candidates"):
        calibrate(run_of(silent, score="stac", k=1), "stac")
    with pytest.raises(KeystoneError, match="says nothing in so many successes of run"):
        calibrate(run_of([*silent, *[[0.1] * 5] * 10], score="stac"), "stac", false_alarms=0.5)


def test_a_few_failures_decide_nothing():
    random = np.random.default_rng(0)
    run = run_of([*walks(random, 30), *walks(random, 4, -9.0)], [True] * 30 + [False] * 4)
    made = calibrate(run, "dispersion")
    assert (made.direction, made.auroc, made.failures) == ("high", None, 4)
    assert too_few(run) == "too few failures (4) to say"
    assert not too_few(run_of(walks(random, 10), [True, False] * 5))
    assert too_few(run_of(walks(random, 10), [True] * 4 + [False] * 6)) == "too few successes (4) to say"


def test_noise_does_not_pass_more_often_for_being_tried_in_two_directions():
    passed = 0
    for seed in range(120):
        random = np.random.default_rng(seed)
        series = [random.normal(size=(3,)) for _ in range(40)]
        passed += find_direction(run_of(series, [True] * 20 + [False] * 20), "dispersion")[1].separates
    assert passed <= 8  # 2.5 % nominal; with intervals of 95 % it would be 5 %


# ---- AUROC


def series_of(values, success, task="reach", state=0):
    return Series(task, state, success, smooth(values, 1))


def test_a_score_that_only_knows_the_task_has_one_half():
    random = np.random.default_rng(0)
    episodes = [
        series_of([level + 0.1 * random.normal()] * 5, random.random() > failing, task, number)
        for task, level, failing in (("easy", 0.0, 0.1), ("hard", 5.0, 0.9))
        for number in range(150)
    ]
    found = auroc(episodes)
    assert found.low < 0.5 < found.high
    assert auroc([Series("both", one.state, one.success, one.values) for one in episodes]).low > 0.7


def test_longer_failures_alone_do_not_separate():
    random = np.random.default_rng(0)
    episodes = [
        series_of(random.normal(size=30 if number % 3 == 0 else 8), number % 3 != 0, state=number)
        for number in range(300)
    ]
    matched, whole = auroc(episodes), auroc(episodes, whole=True)
    assert matched.low < 0.5 < matched.high
    assert whole.low > 0.65


def test_the_interval_is_wider_where_repeats_share_a_state():
    random = np.random.default_rng(0)
    level = random.normal(size=20)
    alone, shared = (
        auroc(
            [
                series_of([level[number % 20]], number % 2 == 0, state=number % 20 if together else number)
                for number in range(200)
            ]
        )
        for together in (False, True)
    )
    assert shared.value == alone.value
    assert shared.high - shared.low > 1.5 * (alone.high - alone.low)


def test_auroc_without_both_outcomes_is_nan():
    assert np.isnan(auroc([series_of([1.0], True)]).value)


# ---- the file


def test_the_file_round_trips(tmp_path):
    made = calibrate(run_of([*walks(np.random.default_rng(0), 60)], weights="abc"), "dispersion", kind="band")
    made.save(tmp_path / "alarm.json")
    assert Calibration.load(tmp_path / "alarm.json") == made


GOOD = {"version": 1, "score": "dispersion", "direction": "high", "kind": "constant", "limit": [0.5], "window": 3,
        "false_alarms": 0.05, "n": 19}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1, 2]", "expected the entries of an alarm"),
        ("{}", "version None"),
        (json.dumps({**GOOD, "version": 2}), "version 2: this version of KeyStone reads 1"),
        (json.dumps({"version": 1, "score": "stac"}), "no 'direction'"),
        (json.dumps({**GOOD, "score": "stak"}), "did you mean 'stac'"),
        (json.dumps({**GOOD, "score": ["stac"]}), "expected a name"),
        (json.dumps({**GOOD, "direction": "up"}), 'direction \'up\': expected "high" or "low"'),
        (json.dumps({**GOOD, "limit": []}), "expected finite numbers"),
        (json.dumps({**GOOD, "limit": ["high"]}), "expected finite numbers"),
        (json.dumps({**GOOD, "limit": "0.5"}), "expected a list"),
        (json.dumps({**GOOD, "limit": [float("nan")]}), "NaN is no number"),
        (json.dumps({**GOOD, "limit": [0.1, 0.2]}), "one number for a constant"),
        (json.dumps({**GOOD, "window": 0}), "expected a whole number, 1 to 10000"),
        (json.dumps({**GOOD, "window": True}), "expected a whole number, 1 to 10000"),
        (json.dumps({**GOOD, "window": 10**30}), "expected a whole number, 1 to 10000"),
        (json.dumps({**GOOD, "limit": [10**400]}), "expected finite numbers"),
        (json.dumps({**GOOD, "false_alarms": 2}), "expected a rate"),
        (json.dumps({**GOOD, "spec": {"k": 16}}), "expected text"),
        (json.dumps({**GOOD, "tasks": [1]}), "tasks (1,): expected names"),
        (json.dumps({**GOOD, "auroc": ["x"]}), "auroc ('x',): expected a number and its interval, or null"),
        (json.dumps({**GOOD, "auroc": [0.7, 0.6]}), "expected a number and its interval, or null"),
        (json.dumps({**GOOD, "failures": "a"}), "failures 'a': expected a whole number, 0 or more"),
        (json.dumps({**GOOD, "seed": "x"}), "seed 'x': expected a whole number"),
    ],
)
def test_a_file_that_is_wrong_gives_one_line(text, says, tmp_path):
    path = tmp_path / "alarm.json"
    path.write_text(text)
    with pytest.raises(KeystoneError) as caught:
        Calibration.load(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    with pytest.raises(KeystoneError, match="No such file"):
        Calibration.load(tmp_path / "none.json")
    assert Calibration.from_dict({**GOOD, "from the future": 1}).n == 19
