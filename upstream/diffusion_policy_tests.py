"""The tests of Diffusion Policy and of DP3."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from diffusion_policies import DIMS, OBSERVED, predict

import keystone_robotics as keystone
from upstream_like import contract


class PolicyTests:
    """For a class in each project's file, which says `NAME` and provides the fixture `policy`."""

    NAME: str

    @pytest.mark.parametrize(("rows", "k"), [(1, 4), (1, 16), (3, 4)])
    def test_candidates_are_single_calls(self, policy: Any, record: Callable[..., None], rows: int, k: int) -> None:
        found = contract.largest_difference(
            policy, partial(predict, policy, rows), k, returned=lambda candidates: candidates[..., :DIMS]
        )
        record(self.NAME, "candidates", found)
        assert found < 1e-5

    def test_fewer_steps(self, policy: Any, record: Callable[..., None]) -> None:
        few = copy.deepcopy(policy)
        few.num_inference_steps = 2
        alone, asked = (partial(predict, one, 3) for one in (few, policy))
        found = contract.largest_difference(
            policy, asked, 4, alone=alone, returned=lambda candidates: candidates[..., :DIMS], steps=2
        )
        record(self.NAME, "steps=2", found)
        assert found < 1e-5

    def test_one_candidate_is_untouched_and_nothing_is_left_behind(self, policy: Any) -> None:
        contract.assert_one_is_untouched(policy, partial(predict, policy, 2))
        contract.assert_no_trace(policy, partial(predict, policy, 2))

    def test_what_counts(self, policy: Any) -> None:
        handle = keystone.attach(policy, k=4)
        window = handle.engine.selector.window(0)
        keystone.detach(policy)
        assert (window.dims, window.start, window.steps) == (DIMS, OBSERVED - 1, 4)
