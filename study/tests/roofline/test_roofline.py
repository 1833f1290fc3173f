"""The analytic model: what must hold whatever the numbers, known limits, and the values that it was written to give."""

import dataclasses
import json
import runpy
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_robotics.cli import main
from keystone_study.roofline import DEVICES, MODELS, Way, largest_k, round_time
from keystone_study.roofline.predict import ARITHMETIC, BANDWIDTH, MOST, step_work
from keystone_study.roofline.published import GROOT
from keystone_study.roofline.table import NOTE, WAYS, six_models

SCRIPT = Path(__file__).parents[3] / "scripts" / "roofline_tables.py"
models, devices = st.sampled_from(sorted(MODELS)), st.sampled_from(sorted(DEVICES))
candidates, tolerances = st.integers(1, 128), st.floats(0, 1)


class Sketch(NamedTuple):
    """Operations of a step and largest K within 5 % on an A6000 (plain and shared eagerly, plain and shared with graphs).

    From an earlier sketch of this model, with numbers of operations that nobody can count again. It left out what a shared
    context still costs once per round: up to one more in the shared columns. It had other sizes for Fast-WAM, which were wrong
    (test_fastwam_sizes.py).
    """

    ops: int
    shared_ops: int
    largest: tuple[int, ...]


SKETCHED = {
    "pi05": Sketch(1002, 802, (14, 30, 2, 5)),
    "smolvla": Sketch(996, 753, (66, 112, 11, 18)),
    "groot": Sketch(665, 600, (10, 31, 1, 8)),
    "xvla": Sketch(268, 268, (2, 2, 1, 1)),
    "starvla": Sketch(340, 310, (17, 41, 3, 8)),
}


def total(model, device, k, way=WAYS[0]):
    return round_time(MODELS[model], DEVICES[device], k, way).total


@given(models, devices, candidates, st.sampled_from(WAYS))
def test_more_candidates_never_cost_less(model, device, k, way):
    assert total(model, device, k + 1, way) >= total(model, device, k, way)


@given(models, devices, candidates, st.booleans())
def test_graphs_never_cost_more_than_eager(model, device, k, shared):
    assert total(model, device, k, Way(True, shared)) <= total(model, device, k, Way(False, shared))


@given(models, devices, st.sampled_from(WAYS), tolerances)
def test_the_largest_k_is_the_last_within_the_tolerance(model, device, way, tolerance):
    k = largest_k(MODELS[model], DEVICES[device], way, tolerance)
    limit = (1 + tolerance) * total(model, device, 1, way)
    assert total(model, device, k, way) <= limit
    assert k == MOST or total(model, device, k + 1, way) > limit


def test_where_launches_decide_k_is_free():
    slow_host = dataclasses.replace(DEVICES["a6000"], eager_us=1e6)
    assert largest_k(MODELS["pi05"], slow_host, tolerance=0.0) == MOST


def test_without_launches_and_bandwidth_limits_the_denoising_grows_with_k():
    ideal = dataclasses.replace(DEVICES["a6000"], bandwidth=1e12, eager_us=0, graph_us=0)
    one, many = (round_time(MODELS["xvla"], ideal, k).denoise for k in (1, 64))
    assert many == pytest.approx(64 * one)


def test_one_candidate_of_few_tokens_is_bound_by_reading_the_weights():
    model, device = MODELS["groot"], DEVICES["a6000"]
    read = 2e6 * model.weights / (BANDWIDTH * 1e9 * device.bandwidth)
    assert step_work(model, device, 1, shared=True)["weights"] == pytest.approx(read)
    # from here on arithmetic takes longer than reading: tokens = arithmetic rate / bandwidth
    turn = (ARITHMETIC * device.tflops * 1e12) / (BANDWIDTH * device.bandwidth * 1e9)
    beyond = int(turn / model.suffix) + 1
    assert step_work(model, device, beyond, shared=True)["weights"] > read


def test_a_shared_cache_does_not_grow_with_k_and_a_repeated_one_does():
    model, device = MODELS["pi05"], DEVICES["a6000"]
    shared, plain = ([step_work(model, device, k, share)["cache"] for k in (1, 16)] for share in (True, False))
    assert shared[0] == shared[1]
    assert plain[1] == pytest.approx(16 * plain[0])


@pytest.mark.parametrize("name", sorted(SKETCHED))
def test_the_largest_k_is_that_of_the_sketch_up_to_one(name):
    ops, shared_ops, largest = SKETCHED[name]
    model = dataclasses.replace(MODELS[name], ops=ops, shared_ops=shared_ops, time_once=True)
    found = tuple(largest_k(model, DEVICES["a6000"], way) for way in WAYS)
    assert found == pytest.approx(largest, abs=1)
    assert found[::2] == largest[::2]  # the plain columns are the same model


def test_time_that_is_not_hoisted_is_paid_in_every_step():
    model, device = MODELS["pi05"], DEVICES["a6000"]
    assert not model.time_once  # see test_shared_denoisers.py: its norms are modulated once in a step
    shared, plain = (step_work(model, device, 8, share)["time"] for share in (True, False))
    assert shared == plain > 0
    hoisted = dataclasses.replace(model, time_once=True)
    assert step_work(hoisted, device, 8, shared=True)["time"] == 0
    way = Way(graphs=True, shared=True)
    extra = round_time(model, device, 8, way).work - round_time(hoisted, device, 8, way).work
    assert extra == pytest.approx((model.steps - 1) * plain)


@pytest.mark.parametrize("name", sorted(GROOT))
def test_within_a_factor_of_what_nvidia_measured(name):
    """Eager within 20 %, or 35 % where the constants were set without it. Compiled it is a lower bound, down to about half:
    kernels of these sizes are slower than assumed.
    """
    measured = GROOT[name]
    eager, graphs = (
        1e3 * round_time(MODELS["groot"], DEVICES[name], 1, Way(graphs)).denoise for graphs in (False, True)
    )
    assert eager == pytest.approx(measured.eager, rel=0.35 if name == "5090" else 0.2)
    assert 0.45 <= graphs / measured.compiled <= 1.0


def test_tables_mark_models_whose_operations_were_not_all_counted():
    lines = six_models(DEVICES["a6000"])
    marked = {
        model.title for model in MODELS.values() if any(line.startswith(f"| {model.title} ≈ |") for line in lines)
    }
    assert marked == {"StarVLA"}
    assert "≈ operations of a step estimated" in lines[0]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_heads_fill_the_width(name):
    assert MODELS[name].query_width % MODELS[name].head == 0


def test_the_heads_of_groot_are_those_of_its_network():
    """As `benchmarks.denoise_groot` builds it: 32 heads of 48."""
    assert (MODELS["groot"].query_width // MODELS["groot"].head, MODELS["groot"].head) == (32, 48)


def test_the_page_is_made_from_the_model():
    script = runpy.run_path(str(SCRIPT))
    assert script["PAGE"].read_text() == script["page"](), "run: python scripts/roofline_tables.py"


@pytest.mark.parametrize("arguments", [(), ("--model", "pi0.5"), ("--model", "GR00T", "--device", "rtx-4090")])
def test_every_output_says_that_it_is_a_model(arguments, capsys, tmp_path):
    path = tmp_path / "new" / "roofline.json"
    assert main(["roofline", *arguments, "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count(NOTE) == (1 if arguments else 2)
    assert all(f"{word}: " in printed.replace("\n", " ") for word in ("Eager", "graphs", "Plain", "shared"))
    predictions = json.loads(path.read_text())["predictions"]
    assert len(predictions) == (1 if arguments else 6)
    assert all(one["note"] == NOTE for one in predictions)
    assert "Assumed of RTX" in printed
    for one in predictions:
        assert one["assumed"]["device"]["title"] == one["device"]
        times = one["ways"]["eager, plain"]["milliseconds"]["16"]
        assert times["total"] == pytest.approx(times["encode"] + max(times["launches"], times["work"]))


def test_a_device_by_its_numbers(capsys):
    known = DEVICES["4090"]
    numbers = ["--bandwidth", str(known.bandwidth), "--tflops", str(known.tflops)]
    tables = []
    for device in (["4090"], ["mine", *numbers], ["4090", "--eager-us", "36"]):
        assert main(["roofline", "--model", "pi05", "--device", *device]) == 0
        tables.append(capsys.readouterr().out.splitlines())
    catalogue, own, slower = tables
    assert "π0.5 on mine:" in own[0]
    assert "RTX 4090 (own numbers)" in slower[0]
    assert catalogue[2:11] == own[2:11]
    eager, graphs = slice(2, 4), slice(4, 6)
    for before, after in zip(catalogue[4:7], slower[4:7], strict=True):
        cells, others = before.split("|"), after.split("|")
        assert cells[graphs] == others[graphs]
        assert cells[eager] != others[eager]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "pi06"), "did you mean 'pi05'"),
        (("--device", "a600"), "did you mean 'a6000'"),
        (("--k", "0", "4"), "1 or more"),
        (("--k", "4", "16"), "give a model with --model"),
        (("--tolerance", "-1"), "0 or more"),
        (
            ("--device", "RTX 4000 Ada", "--bandwidth", "360"),
            "give its bandwidth in GB/s and its dense bfloat16 tflops",
        ),
        (("--eager-us", "0"), "eager_us=0.0: expected a number of more than 0"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    assert main(["roofline", *arguments]) == 2
    assert message in capsys.readouterr().err
