"""Neither the search for K nor a profile changes the path on which candidates are drawn."""

import contextlib
from functools import partial

import pytest

import keystone_robotics as keystone
from tiny import POLICIES
from upstream_like import contract


@pytest.mark.parametrize("name", ["smolvla", "pi0", "pi05", "groot", "fastwam"])
def test_policies_with_a_fast_path_take_it_however_they_are_attached_to(name, monkeypatch):
    monkeypatch.setattr("keystone_robotics.profiling.auto.KS", (1, 4))
    recipe = POLICIES[name]
    policy = recipe.build().requires_grad_(False)
    predict = partial(recipe.predict, policy, recipe.batch(1))
    assert contract.paths(policy, predict) == {"given": "fast", "auto": "fast", "profile": "fast"}


@pytest.mark.parametrize("fails", [False, True])
def test_no_action_of_a_profile_is_left_to_be_executed(fails, monkeypatch):
    recipe = POLICIES["diffusion"]
    policy, batch = recipe.build().requires_grad_(False), recipe.batch(1)
    policy.reset()
    if fails:
        monkeypatch.setattr("keystone_robotics.profiling.journal.Journal.conclude", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        keystone.profile(policy, batch, k=4, rounds=1)
    handle = keystone.attach(policy, k=4)
    policy.select_action(batch)
    assert handle.stats["rounds"] == 1
