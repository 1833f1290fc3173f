"""Neither the search for K nor a profile changes the path on which candidates are drawn."""

from functools import partial

import pytest

from tiny import POLICIES
from upstream_like import contract


@pytest.mark.parametrize("name", ["smolvla", "pi0", "pi05", "groot", "fastwam"])
def test_policies_with_a_fast_path_take_it_however_they_are_attached_to(name, monkeypatch):
    monkeypatch.setattr("keystone.profiling.auto.KS", (1, 4))
    recipe = POLICIES[name]
    policy = recipe.build().requires_grad_(False)
    predict = partial(recipe.predict, policy, recipe.batch(1))
    assert contract.paths(policy, predict) == {"given": "fast", "auto": "fast", "profile": "fast"}
