"""Operations of a denoising step in the roofline are those that LeRobot's policies and their fast paths start, counted.

Widths and tokens are tiny, which does not matter. Two numbers of layers tell what a layer adds, two numbers of steps what a
step adds. Attention goes the mode of a GPU: one operation where there is no bias. In float32, so without conversions of types.
"""

import functools
from typing import Any, NamedTuple

import pytest
import torch

import keystone_robotics as keystone
from keystone_study.roofline import MODELS
from tiny import POLICIES
from tiny.efficient import as_on_cuda
from tiny.shapes import Operations


class Counted(NamedTuple):
    """How a tiny policy gets its depth, which two depths are built, its real one, and where it keeps its number of steps."""

    option: str
    depths: tuple[int, int]
    real: int
    steps: tuple[str, str]


CASES = {
    "pi05": Counted("depth", (2, 3), MODELS["pi05"].layers, ("config", "num_inference_steps")),
    # Every other layer is of another kind.
    "smolvla": Counted("num_vlm_layers", (2, 4), MODELS["smolvla"].layers, ("config", "num_steps")),
    # They repeat in fours, and half of them look at the context.
    "groot": Counted(
        "blocks", (4, 8), 2 * MODELS["groot"].layers, ("_groot_model.action_head", "num_inference_timesteps")
    ),
    "xvla": Counted("depth", (2, 3), MODELS["xvla"].layers, ("config", "num_denoising_steps")),
}


@functools.cache
def of_a_step(name: str, depth: int, shared: bool, **options: Any) -> int:
    """Of a step, on the fast path with two candidates or in the policy's own code."""
    case, tiny = CASES[name], POLICIES[name]
    policy, counts = tiny.build(**{case.option: depth}, **options).requires_grad_(False), []
    with as_on_cuda(), torch.no_grad():
        handle = keystone.attach(policy, k=2, seed=0) if shared else None
        tiny.predict(policy, tiny.batch(1))  # the first round is compared
        assert handle is None or handle.path == "fast"
        for steps in (2, 3):
            place, attribute = case.steps
            setattr(functools.reduce(getattr, place.split("."), policy), attribute, steps)
            with Operations() as operations:
                tiny.predict(policy, tiny.batch(1))
            counts.append(operations.count)
    return counts[1] - counts[0]


def of_a_real_step(name: str, shared: bool, real: int | None = None, **options: Any) -> int:
    case = CASES[name]
    few, more = (of_a_step(name, depth, shared, **options) for depth in case.depths)
    return few + ((real or case.real) - case.depths[0]) * (more - few) // (case.depths[1] - case.depths[0])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shared", [False, True])
def test_operations_of_a_step(name: str, shared: bool) -> None:
    model = MODELS[name]
    found = of_a_real_step(name, shared and model.shares_context)
    assert found == pytest.approx(model.shared_ops if shared else model.ops, rel=0.02)  # other versions of torch differ
    if shared and model.shares_context:
        assert found < of_a_real_step(name, shared=False)


@pytest.mark.parametrize("shared", [False, True])
def test_operations_of_starvla_are_estimated_by_those_of_groot(shared: bool) -> None:
    model = MODELS["starvla"]
    found = of_a_real_step("groot", shared, real=2 * model.layers)
    assert found == pytest.approx(model.shared_ops if shared else model.ops, rel=0.02)


def test_a_shared_step_in_bfloat16_has_fewer_operations_too() -> None:
    """Conversions come on top of both: merging what is seen of the context and of the own tokens is done in float32."""
    shared, plain = (of_a_real_step("pi05", share, dtype="bfloat16") for share in (True, False))
    assert MODELS["pi05"].shared_ops < shared < plain
