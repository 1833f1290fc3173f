"""Where a round's time goes: by a clock turned by hand, and on real policies."""

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.profiling.phases import DENOISE, ENCODE, OTHER, SELECT, Watch
from keystone_robotics.sample.adapter import Adapter, Seam, Window
from keystone_robotics.sample.families import ADAPTERS
from tiny import POLICIES


def watched_round(handle, clock, k, act):
    watch = Watch(handle, clock)
    handle.k = k
    with watch.watching(), torch.no_grad():
        watch.begin()
        act()
        spent = watch.end()
    return watch, spent


def test_what_encode_and_sample_take_is_told_apart(timed, clock):
    handle = keystone.attach(timed, k=4, check=False)
    handle.subscribe(lambda chosen: clock.turn(3)  # selecting is what the handle does)
    watch, spent = watched_round(handle, clock, 16, lambda: timed(torch.zeros(1, 2)))
    assert spent == {ENCODE: 5.0, DENOISE: 26.0, SELECT: 3.0, OTHER: 0.0}
    assert (watch.rows, watch.drawn, watch.reached, watch.mixed) == (1, 16, True, False)
    watch, spent = watched_round(handle, clock, 1, lambda: timed(torch.zeros(3, 2)))
    assert spent == {ENCODE: 5.0, DENOISE: 10.0, SELECT: 0.0, OTHER: 0.0}
    assert (watch.rows, watch.drawn) == (None, None)  # K = 1 is the policy's own code: there is nothing to choose
    keystone.detach(timed)
    assert set(vars(timed)) == set(vars(type(timed)(clock)))


class Loop(torch.nn.Module):
    """Encodes inside its sampler: 2 ms vision, 4 ms language, then 3 steps of 1 ms. One with no step to be seen hides them."""

    def __init__(self, clock, steps_to_be_seen):
        super().__init__()
        self.clock, self.steps_to_be_seen = clock, steps_to_be_seen
        self.name = "loop"

    def see(self):
        self.clock.turn(2)

    def step(self, x):
        self.clock.turn(1)
        return x * 0.9

    def act(self, noise=None, rows=1):
        self.see()
        self.clock.turn(4)
        x = torch.randn(rows, 8, 2) if noise is None else noise
        for _ in range(3):
            x = self.step(x) if self.steps_to_be_seen else Loop.step(self, x)
        return x


class LoopOverride(Seam):
    def act(self, noise=None, rows=1):
        act = super().act
        return self._keystone.round(
            lambda: act(rows=rows), lambda noise, k: act(noise), batch=rows, shape=(8, 2), device="cpu"
        )


class LoopAdapter(Adapter):
    name = "loop"
    override = LoopOverride

    def owns(self, policy):
        return isinstance(policy, Loop)

    def module(self, policy):
        return policy

    def encoder_methods(self, policy):
        return [(policy, "see")]

    def step_methods(self, policy):
        return [(policy, "step")]

    def window(self, config):
        return Window(2, 0, 8)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("seen", [True, False])
def test_an_encoder_inside_the_sampler(k, seen, clock, monkeypatch):
    monkeypatch.setitem(ADAPTERS, "loop", LoopAdapter())
    policy = Loop(clock, seen)
    handle = keystone.attach(policy, k=k, check=False)
    watch = Watch(handle, clock)
    handle.k = k
    with watch.watching():
        for _ in range(2):  # the first call finds out whether the steps can be seen
            watch.begin()
            policy.act()
            spent = watch.end()
    # Unseen, the language model's 4 ms cannot be told from denoising, and the watch says so.
    assert (spent[ENCODE], spent[DENOISE]) == ((6.0, 3.0) if seen else (2.0, 7.0))
    assert watch.mixed is not seen
    keystone.detach(policy)
    assert not {"act", "see", "step", "_keystone"} & set(vars(policy))


@pytest.mark.parametrize(("name", "mixed"), [("smolvla", False), ("groot", False), ("xvla", True)])
def test_real_policies_go_through_the_phases_in_order(name, mixed, clock):
    recipe = POLICIES[name]
    policy = recipe.build().requires_grad_(False)
    handle = keystone.attach(policy, k=2, check=False)
    observation = recipe.batch()
    for k, expected in ((2, [ENCODE, DENOISE, SELECT, OTHER]), (1, [ENCODE, DENOISE, OTHER])):
        policy.reset()
        watch, _ = watched_round(handle, clock, k, lambda: policy.select_action(dict(observation)))
        order = [phase for number, phase in enumerate(clock.log) if number == 0 or phase != clock.log[number - 1]]
        inside = [DENOISE, ENCODE] if mixed else []  # the sampler is reached, then it encodes
        assert order == [ENCODE, *inside, *expected[1:]]
        assert watch.mixed is mixed
    keystone.detach(policy)
    assert not any("keystone" in key for module in policy.modules() for key in vars(module))
