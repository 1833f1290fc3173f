"""What `keystone report` writes, without a browser."""

import base64
import io
import json
import math
import re
import zlib
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from runs_with_rounds import make_rounds, write_run_with_rounds

from keystone_robotics.cli import main
from keystone_robotics.compare.comparison import compare
from keystone_robotics.compare.find import read
from keystone_robotics.environments import find_benchmark
from keystone_robotics.environments.pusht import PushT
from keystone_robotics.evaluate.rollout import hash_state
from keystone_robotics.records import FILE, EpisodeRecord, RoundRecord, Store
from keystone_robotics.report.page.data import BUDGET, Section, page_data
from keystone_robotics.report.page.films import film_episodes
from keystone_robotics.report.page.read import read_runs
from keystone_robotics.report.page.rounds import LEVELS, VALUES, pack_rounds
from keystone_robotics.report.page.write import as_json, render
from keystone_robotics.tune.result import ArmResult

VLA_EVAL = Path(__file__).parents[1] / "compare" / "data" / "vla_eval.json"
ARMS = {"first": (0.4, 1), "keystone:k=8": (0.9, 8)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run_with_rounds(tmp_path_factory.mktemp("run"), ARMS)


def data_in(path):
    return json.loads(re.search('id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def unpack(packed):
    """What page.js does."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), np.uint8).reshape(2, -1)
    folded = planes.T.copy().view("<u2").reshape(packed["shape"]).astype(int)
    steps = np.where(folded % 2, -(folded + 1) // 2, folded // 2)
    low, high = np.array(packed["low"]), np.array(packed["high"])
    return low + steps.cumsum(2) * (high - low) / packed["levels"]


def test_numbers_are_those_of_compare(run, tmp_path, capsys):
    assert main(["report", str(run), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert "keystone:k=8 is better than first" in capsys.readouterr().out
    data = data_in(tmp_path / "new" / "page.html")
    wanted = compare(*read(run))
    (shown,) = data["comparisons"]
    assert shown["difference"] == wanted.overall.difference
    assert tuple(shown["interval"]) == wanted.overall.interval
    assert shown["verdict"] == "keystone:k=8 is " + wanted.verdict.removeprefix("B is ")
    assert [arm["rate"] for arm in data["arms"]] == [wanted.overall.a.rate, wanted.overall.b.rate]
    gained, lost = wanted.overall.discordant
    outcomes = data["episodes"]["success"]
    assert sum(outcomes[b] - outcomes[a] > 0 for a, b in shown["flips"]) == gained
    assert sum(outcomes[b] - outcomes[a] < 0 for a, b in shown["flips"]) == lost
    assert {shown["tasks"][one.task]["p_holm"] for one in wanted.tasks} == {one.p_holm for one in wanted.tasks}


@given(
    k=st.integers(1, 5), rounds=st.integers(1, 4), steps=st.integers(1, 9), dims=st.integers(1, 4),
    size=st.sampled_from([0.0, 1e-6, 1.0, 1e6]), seed=st.integers(0, 99), levels=st.sampled_from(LEVELS),
)  # fmt: skip
def test_candidates_survive_packing(k, rounds, steps, dims, size, seed, levels):
    random = np.random.default_rng(seed)
    given = (size * random.normal(size=(rounds, k, steps, dims))).astype(np.float32)
    records = [RoundRecord(n, n, one, np.zeros(k, int), 0, False, 1.0, 0.0, one[0, :1]) for n, one in enumerate(given)]
    packed = pack_rounds(records, levels=levels)
    width = np.ptp(given, axis=(0, 1, 2))
    assert (np.abs(unpack(packed) - given) <= 0.6 * width / levels + 1e-5 * np.abs(given).max((0, 1, 2))).all()


def test_candidates_that_were_dropped_do_not_spoil_the_others():
    (one,) = make_rounds(np.random.default_rng(0), 4, rounds=1)
    broken = one.candidates.copy()
    broken[2, 3] = np.nan
    broken[3] = np.inf
    packed = pack_rounds([RoundRecord(0, 0, broken, np.array([0, 0, -1, -1]), 0, False, 1.0, 0.0, one.actions)])
    assert np.abs(unpack(packed)[0, :2] - broken[:2]).max() < 2e-3


def test_rounds_with_more_candidates_than_the_first_are_packed_too():
    """Adaptive K: 2 where they agree, else 5."""
    random = np.random.default_rng(0)
    given = [random.normal(size=(k, 4, 3)).astype(np.float32) for k in (2, 5, 2, 5)]
    packed = pack_rounds(
        [RoundRecord(n, n, one, np.zeros(len(one), int), 0, False, 1.0, 0.0, one[0]) for n, one in enumerate(given)]
    )
    assert (packed["kept"], packed["shape"]) == ([0, 1, 2, 3], [4, 5, 4, 3])
    assert [len(labels) for labels in packed["labels"]] == [2, 5, 2, 5]  # the page shows candidates with a label
    for one, found in zip(given, unpack(packed)):
        assert np.abs(found[: len(one)] - one).max() < 1e-2


def test_long_episodes_keep_some_of_their_rounds():
    rounds = make_rounds(np.random.default_rng(0), 32, rounds=200, steps=20, dims=7)
    packed = pack_rounds(rounds)
    assert np.prod(packed["shape"]) <= VALUES
    assert len(packed["kept"]) > 30
    assert len(packed["consensus"]) == 200


def test_a_small_budget_takes_flipped_episodes_first(run):
    runs = read_runs([run])
    everything = page_data(runs)
    assert everything["stored"] == {"episodes": 31, "shown": 31}  # the one with an error has none
    data = page_data(runs, budget=20_000)
    flips = [place for pair in data["comparisons"][0]["flips"] for place in pair]
    assert data["stored"]["episodes"] == 31
    assert 0 < data["stored"]["shown"] < 31
    assert set(data["rounds"]) <= set(flips) or set(flips) <= set(data["rounds"])


def test_the_budget_bounds_the_page(tmp_path):
    folder = write_run_with_rounds(tmp_path / "run", ARMS, episodes=20, dims=7)
    coarse = page_data(read_runs([folder]), budget=250_000)
    assert coarse["stored"]["shown"] == coarse["stored"]["episodes"]
    assert {one["levels"] for one in coarse["rounds"].values()} < set(LEVELS[1:])  # coarser rather than fewer
    budget = 100_000
    data = page_data(read_runs([folder]), budget=budget)
    assert 0 < data["stored"]["shown"] < data["stored"]["episodes"]
    assert len(render(data)) - len(render({**data, "rounds": {}})) < 1.1 * budget
    # everything but rounds: 80 episodes take below 100 kB, script and style included, so 500 with rounds stay below 15 MB
    assert len(render({**data, "rounds": {}})) < 100_000
    assert 1.1 * BUDGET < 13_000_000


HOSTILE = "</script x><!--<script></script><script>alert(0)</script><img src=x onerror=alert(1)>&amp;\u2028@@DATA@@ \"'"


class Parsed(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)


def test_hostile_names_stay_text(tmp_path):
    folder = write_run_with_rounds(
        tmp_path / "run", {"first": (0.2, None), HOSTILE: (0.9, None)}, (HOSTILE, "b"), error=HOSTILE
    )
    page = render(page_data(read_runs([folder])))
    plain = render({"headline": "nothing"})
    assert Parsed(page).tags == Parsed(plain).tags
    (tmp_path / "page.html").write_text(page)
    data = data_in(tmp_path / "page.html")
    assert data["arms"][1]["name"] == data["tasks"][0] == data["episodes"]["errors"][0] == HOSTILE
    assert data["headline"] == f"{HOSTILE} is better than first"


def shown(value):
    """What a reader sees of a value: escapes for what turns the reading direction or does not print."""
    if isinstance(value, list):
        return [shown(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    marks = "\x00-\x07\x0b\x0e-\x1f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    return re.sub(f"[{marks}]", lambda found: rf"\u{ord(found[0]):04x}", value)


@given(st.recursive(st.text() | st.text("\\u20e\u202e\x1b") | st.floats(), st.lists))
def test_json_is_the_shown_value_and_cannot_end_a_script(value):
    text = as_json(value)
    assert json.loads(text) == shown(value)
    assert not set(text) & set("<>&\u2028\u2029\u202e")


def test_latencies_that_are_no_numbers_are_left_out(run):
    runs = read_runs([run])
    measured = page_data(runs)["arms"][0]["time"]
    broken = [replace(one, latency_ms=math.inf, dispersion=math.nan) for one in runs.arms[0].episodes[:1]]
    episodes = (*broken, *runs.arms[0].episodes[1:])
    data = page_data(replace(runs, arms=(replace(runs.arms[0], episodes=episodes), *runs.arms[1:])))
    assert data["arms"][0]["time"]["high"] == pytest.approx(measured["high"], rel=0.2)
    assert "null" in render(data)


def test_sections_of_a_caller_are_in_the_page(run, tmp_path):
    (tmp_path / "film.gif").write_bytes(b"GIF89a")
    section = Section("A film", ("It <moves>.",), tmp_path / "film.gif", "a robot", "keystone eval")
    (shown,) = page_data(read_runs([run]), sections=[section])["sections"]
    assert shown == {
        "title": "A film",
        "text": ("It <moves>.",),
        "image": "data:image/gif;base64,R0lGODlh",
        "alt": "a robot",
        "code": "keystone eval",
    }


def test_several_runs_of_the_same_arms(run, tmp_path):
    other = write_run_with_rounds(tmp_path / "other", ARMS, seed=1)
    runs = read_runs([run, other])
    assert [arm.name for arm in runs.arms] == [f"{folder.name}: {arm}" for folder in (run, other) for arm in ARMS]
    data = page_data(runs)
    assert data["stored"]["episodes"] == 62
    assert len(data["comparisons"]) == 3


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path):
    runs = [write_run_with_rounds(tmp_path / day / "run", {"first": (0.5, None)}) for day in ("monday", "tuesday")]
    assert [arm.name for arm in read_runs(runs).arms] == ["monday/run: first", "tuesday/run: first"]
    assert [arm.name for arm in read_runs(runs[:1] * 2).arms] == ["run: first", "run: first (2)"]


def test_results_of_another_program(tmp_path, capsys):
    assert main(["report", str(VLA_EVAL), str(VLA_EVAL), "--out", str(tmp_path / "page.html")]) == 0
    assert "no rounds" in capsys.readouterr().out
    data = data_in(tmp_path / "page.html")
    assert [arm["tool"] for arm in data["arms"]] == ["vla-eval"] * 2
    assert data["arms"][0]["time"]["what"] == "one episode"
    assert data["stored"] == {"episodes": 0, "shown": 0}


def test_one_arm_is_reported_without_a_comparison(run):
    data = page_data(read_runs([run], ["keystone:k=8"]))
    assert data["comparisons"] == []
    assert data["headline"].startswith("keystone:k=8: ")


def test_arms_without_a_common_task_are_not_compared(run, tmp_path):
    other = write_run_with_rounds(tmp_path / "other", {"medoid:k=4": (0.5, None)}, ("elsewhere",))
    data = page_data(read_runs([run, other]))
    assert [one["arm"] for one in data["comparisons"]] == [1]
    assert "medoid:k=4 has no task in common with first: not compared" in data["notes"]


TUNED = {
    "headline": "use keystone:k=8",
    "notes": ["a note"],
    "finalists": [],
    "arms": [asdict(ArmResult("keystone:k=8", 0.5, 4, 0, 5.0, 1.0, "won"))],
}


def test_a_tuning_run_shows_its_confirmation_and_its_race(tmp_path):
    for name in ("race", "confirm"):
        write_run_with_rounds(tmp_path / name, {name: (0.5, None), "b": (0.5, None)})
    unfinished = page_data(read_runs([tmp_path]))
    assert unfinished["arms"][0]["name"] == "race"
    assert any("unfinished tuning run" in note for note in unfinished["notes"])
    (tmp_path / "tune.json").write_text(json.dumps(TUNED))
    data = page_data(read_runs([tmp_path]))
    assert data["arms"][0]["name"] == "confirm"
    assert data["tunings"][0]["headline"] == "use keystone:k=8"
    assert data["tunings"][0]["rows"][1][0] == "keystone:k=8"


def test_an_unfinished_run_says_so(run, tmp_path):
    folder = write_run_with_rounds(tmp_path / "run", ARMS, episodes=2)
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "settings.json").write_text(json.dumps({**settings, "episodes": 50}))
    assert "first is unfinished: 4 of 100 episodes" in page_data(read_runs([folder]))["notes"]


def empty(folder):
    with Store(folder) as store:
        store.claim({"policy": "p"})


def broken(folder):
    folder.mkdir()
    (folder / FILE).write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)


def half_tuned(folder):
    write_run_with_rounds(folder / "confirm", {"a": (0.5, None)})
    (folder / "tune.json").write_text('{"arms": 3}')


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (empty, [], "holds no episode yet"),
        (broken, [], "is damaged or not a KeyStone database"),
        (half_tuned, [], "is not in the format of `keystone tune`"),
        (lambda folder: None, [], "does not exist"),
        (lambda folder: folder.mkdir(), [], "holds no result: expected the folder of a `keystone eval`"),
        (lambda folder: write_run_with_rounds(folder, ARMS, episodes=1), ["--arms", "frist"], "did you mean 'first'?"),
        (lambda folder: write_run_with_rounds(folder, ARMS, episodes=1), ["--out", "."], "--out . is a folder"),
        (lambda folder: write_run_with_rounds(folder, ARMS, episodes=1), ["--out", "/dev/null/x.html"], "cannot write"),
    ],
)
def test_what_cannot_be_reported_is_one_line(tmp_path, monkeypatch, capsys, make, arguments, message):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "run")
    assert main(["report", "run", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("*.html"))


def test_no_run_is_one_line(capsys):
    assert main(["report"]) == 2
    assert capsys.readouterr().err.startswith("keystone: no run was given")


def pusht_run(folder, env="pusht"):
    """One PushT episode of two arms with kept rounds, whose actions push nothing; its initial state is the seed's."""
    simulator = find_benchmark("pusht").make("pusht")
    observation, info = simulator.reset(seed=5)
    simulator.close()
    state = hash_state(info.get("initial_state", observation))
    with Store(folder) as store:
        store.claim({"policy": "p", "env": env, "seed": 0, "max_steps": None, "execute": None})
        for arm, success in (("first", False), ("keystone:k=2", True)):
            chunks = np.linspace(100, 300, 2 * 8 * 2, dtype=np.float32).reshape(2, 8, 2)
            rounds = tuple(
                RoundRecord(n, 8 * n, chunks, np.zeros(2, int), 0, False, 1.0, 0.0, chunks[n]) for n in range(2)
            )
            row = EpisodeRecord(
                arm=arm, task="pusht", episode=0, initial_state=state, initial_seed=5, noise_seed=0, success=success,
                steps=16, rounds=2, kept_rounds=rounds,
            )  # fmt: skip
            store.add_shard([row], 1.0)
    (folder / "settings.json").write_text(json.dumps({"policy": "p", "env": env, "arms": ["first", "keystone:k=2"]}))
    return folder


def test_films_replay_the_stored_actions(tmp_path, capsys):
    run = pusht_run(tmp_path / "run")
    assert main(["report", str(run), "--films", "3", "--out", str(tmp_path / "page.html")]) == 0
    films = data_in(tmp_path / "page.html")["films"]
    assert sorted(films) == ["0", "1"]  # both of the episode that changed
    assert films["1"]["step"] == list(range(17))
    assert list(page_data(read_runs([run]), films=1)["films"]) == [1]  # which the page lists, not the first arm's
    images = [base64.b64decode(uri.partition("base64,")[2]) for uri in films["1"]["images"]]
    first, last = (np.asarray(Image.open(io.BytesIO(one)).convert("RGB"), float) for one in (images[0], images[-1]))
    assert first.shape == (240, 240, 3)
    assert np.abs(first - last).max() > 50  # the tool moved
    assert films["0"]["notes"] == []
    assert films["1"]["notes"] == ["replayed, the episode fails; when it was stored, it succeeds"]
    assert "2 films" in capsys.readouterr().out
    few, notes = film_episodes([(1, str(run), ("keystone:k=2", "pusht", 0, 0))], 1, budget=100)
    assert (few, notes) == ({}, ["0 films fill the page; it was asked for 1"])


def test_what_is_filmed_first_has_several_candidates(tmp_path, monkeypatch):
    """As the episode that the page opens."""
    arms = {"first": (0.1, 1), "first:steps=2": (0.9, 1), "keystone:k=8": (0.9, 8)}
    run = write_run_with_rounds(tmp_path / "run", arms)

    def film_first(episodes, count):
        return {next(iter(episodes))[0]: "a film"}, []

    monkeypatch.setattr("keystone_robotics.report.page.films.film_episodes", film_first)
    data = page_data(read_runs([run]), films=1)
    (place,) = data["films"]
    assert data["episodes"]["arm"][place] == 2
    assert place in [b for _, b in data["comparisons"][1]["flips"]]


class Blind(PushT):
    """Without a display, say."""

    def make(self, task, render=False):
        env = super().make(task, render)
        env.unwrapped.render = lambda: 1 / 0
        return env


class Plain(PushT):
    """Nobody wrote what draws it."""

    def make(self, task, render=False):
        return super().make(task)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("pusht?", "pusht takes no options"),
        ("gymnasium:Pendulum-v1?min_return=0", "no task 'pusht'"),
        (f"{__name__}:Blind", "the environment cannot be drawn: division by zero"),
        (f"{__name__}:Plain", "the environment cannot be drawn: it was made without images"),
    ],
)
def test_what_cannot_be_filmed_is_a_note(tmp_path, capsys, env, said):
    run = pusht_run(tmp_path / "run", env)
    assert main(["report", str(run), "--films", "1", "--out", str(tmp_path / "page.html")]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: no film: ")]
    assert said in note
    assert data_in(tmp_path / "page.html")["films"] == {}


def test_without_rounds_there_is_no_film(tmp_path, capsys):
    run = write_run_with_rounds(tmp_path / "run", {"first": (0.4, None)})
    assert main(["report", str(run), "--films", "1", "--out", str(tmp_path / "page.html")]) == 0
    assert "no film: the runs hold no rounds" in capsys.readouterr().out
