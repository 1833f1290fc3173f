"""Neither the search for K nor a profile changes the path on which candidates are drawn, or leaves actions behind."""

import contextlib

import pytest

import keystone_robotics as keystone
from tiny import POLICIES


@pytest.mark.parametrize("name", ["smolvla", "groot"])
def test_policies_with_a_fast_path_take_it_while_k_is_found_and_in_a_profile(name, monkeypatch):
    monkeypatch.setattr("keystone_robotics.profiling.auto.KS", (1, 4))
    recipe = POLICIES[name]
    policy = recipe.build().requires_grad_(False)
    events = []
    handle = keystone.attach(policy, k="auto")
    handle.subscribe(events.append)
    for _ in range(3):
        recipe.predict(policy, recipe.batch(1))
        if handle.engine.k_given:
            handle.k = 4  # which may have turned out to be 1
    assert [(event.k, event.path) for event in events] == [(4, "fast")] * 3
    keystone.detach(policy)
    assert keystone.profile(policy, recipe.batch(1), k=4, rounds=1).path == "fast"


@pytest.mark.parametrize("fails", [False, True])
def test_no_action_of_a_profile_is_left_to_be_executed(fails):
    recipe = POLICIES["diffusion"]
    policy, batch = recipe.build().requires_grad_(False), recipe.batch(1)
    policy.reset()

    def progress(done, total):
        if fails and done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext():
        keystone.profile(policy, batch, k=4, rounds=1, progress=progress)
    handle = keystone.attach(policy, k=4)
    policy.select_action(batch)
    assert handle.stats["rounds"] == 1
