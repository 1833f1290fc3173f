"""What a home-grown policy can do to `attach`, and what `attach` must not do to it. Needs torch alone."""

import threading

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import ActionSpace, KeystoneError
from keystone_robotics.sample import adapter, override
from keystone_robotics.sample.families import ADAPTERS
from keystone_robotics.sample.site import SiteAdapter


class Sampler(torch.nn.Module):
    def sample(self, observation):
        return observation[:, None] + torch.randn(len(observation), 6, 2)


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Sampler()

    def act(self, observation):
        return self.model.sample(observation)


@pytest.fixture
def policy():
    return Policy()


ONE = torch.zeros(1, 2)


def in_threads(count, work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_concurrent_rounds_do_not_repeat_each_others_noise(policy):
    handle = keystone.attach(policy, k=2, site="act")
    seeds = []
    handle.subscribe(lambda chosen: seeds.append(chosen.seeds))
    in_threads(4, lambda _: [policy.act(ONE) for _ in range(40)])
    assert len(seeds) == len(set(seeds)) == 160


def test_concurrent_rounds_with_given_seeds_are_what_they_are_one_by_one(policy):
    handle = keystone.attach(policy, k=4, site="act")
    results = {}

    def work(seed):
        with handle.seeded(seed):
            results[seed] = policy.act(ONE)

    work(0)
    in_threads(8, work)
    concurrent = dict(results)
    for seed in range(8):
        work(seed)
        assert torch.equal(results[seed], concurrent[seed])


def test_seeds_are_for_one_policy_only():
    first, second = Policy(), Policy()
    handle = keystone.attach(first, k=4, site="act")
    other = keystone.attach(second, k=1, site="act")
    with handle.seeded(1):
        first.act(ONE)
        second.act(ONE)
    assert handle.stats["rounds"] == 1
    assert other.stats["rounds"] == 0, "the other policy runs its own code"


def test_seeds_may_be_numpy_numbers(policy):
    handle = keystone.attach(policy, k=4, site="act", seed=np.int64(3))
    chunk = policy.act(ONE)
    with handle.seeded(np.int64(5)):
        policy.act(ONE)
    keystone.detach(policy)
    keystone.attach(policy, k=4, site="act", seed=3)
    assert torch.equal(policy.act(ONE), chunk)


@pytest.mark.parametrize("wrong", [True, 1.5, "x"])
def test_a_seed_that_is_none_is_refused_before_the_round(policy, wrong):
    with pytest.raises(TypeError, match="whole number"):
        keystone.attach(policy, k=4, site="act", seed=wrong)
    handle = keystone.attach(policy, k=4, site="act")
    with pytest.raises(TypeError), handle.seeded(wrong):
        pass


@pytest.mark.parametrize(
    "options", [{"space": "x"}, {"check": "al"}, {"site": ""}, {"site": 3}, {"metric": "l3"}, {"k": 2.0}]
)
def test_wrong_options_leave_the_policy_alone(policy, options):
    with pytest.raises((TypeError, ValueError)):
        keystone.attach(policy, **{"k": 4, "site": "act", **options})
    assert type(policy) is Policy
    assert keystone.attached(policy) is None


def test_a_method_replaced_on_the_object_is_vectorised_as_it_is(policy):
    compiled = policy.act = torch.compile(policy.act, backend="eager")
    handle = keystone.attach(policy, k=4, site="act", check="all")
    policy.act(ONE)
    assert handle.engine.finding.compared == 4
    keystone.detach(policy)
    assert type(policy) is Policy
    assert policy.act is compiled


def test_detaching_what_is_inside_detaches_all(policy):
    before = set(vars(policy))
    keystone.attach(policy, k=4, site="model.sample")
    keystone.detach(policy.model)
    assert keystone.attached(policy) is None
    assert set(vars(policy)) == before
    keystone.attach(policy, k=4, site="model.sample")


def test_a_class_changed_later_is_not_undone_by_guessing(policy):
    keystone.attach(policy, k=4, site="act")
    attached = type(policy)
    policy.__class__ = Sampler
    with pytest.raises(KeystoneError, match="changed the class"):
        keystone.detach(policy)
    policy.__class__ = attached
    keystone.detach(policy)
    assert type(policy) is Policy


def test_a_class_that_cannot_change_is_refused():
    class Slotted:
        __slots__ = ("__dict__", "x")

        def act(self):
            return torch.randn(1, 6, 2)

    class Odd(Slotted):
        __slots__ = ()

    policy = Odd()
    with pytest.raises(KeystoneError, match="cannot be changed"):
        keystone.attach(policy, k=4, site="act")
    assert type(policy) is Odd
    assert keystone.attached(policy) is None


def test_attaching_again_and_again_makes_no_new_classes(policy):
    for _ in range(3):
        keystone.attach(policy, k=4, site="act")
        keystone.detach(policy)
    made = len(override._classes)
    keystone.attach(policy, k=4, site="act")
    assert len(override._classes) == made


def test_temperature_zero_is_one_chunk_k_times(policy):
    handle = keystone.attach(policy, k=4, site="act", temperature=0)
    assert torch.equal(policy.act(ONE), torch.zeros(1, 6, 2))
    assert handle.last.spread.tolist() == [0.0]


def test_one_seed_serves_all_rows_of_a_site(policy):
    handle = keystone.attach(policy, k=4, site="act")
    with handle.seeded([1, 2]):
        first = policy.act(torch.zeros(2, 2))
    with handle.seeded([1, 2]):
        assert torch.equal(policy.act(torch.zeros(2, 2)), first)


def test_a_rule_class_from_the_registry_is_a_rule(policy):
    handle = keystone.attach(policy, k=4, site="act", rule=keystone.RULES["medoid"])
    policy.act(ONE)
    assert handle.last.rule == "medoid"


def test_batched_candidates_keep_their_gradients():
    candidates = torch.randn(2, 4, 6, 2, requires_grad=True)
    keystone.select(candidates).chunk.sum().backward()
    assert candidates.grad.count_nonzero() == 2 * 6 * 2


def test_a_seed_is_checked_whatever_was_chosen_before():
    chunks = np.zeros((4, 6, 2))
    keystone.select(chunks, seed=1)
    for wrong in (True, 1.0, [1], "abc"):
        for rule in ("keystone", "medoid"):
            with pytest.raises(TypeError, match="whole number"):
                keystone.select(chunks, rule, seed=wrong)


def test_more_clusters_than_candidates_are_as_many_as_candidates():
    assert keystone.select(np.arange(4.0).reshape(4, 1, 1), clusters=10**11, tau=0).sizes.shape == (4,)


def test_a_module_is_no_site(policy):
    with pytest.raises(KeystoneError, match=r"is a module, not a method.*model.forward"):
        keystone.attach(policy, k=4, site="model")
    assert keystone.attached(policy) is None


def test_the_handle_says_what_is_on(policy):
    handle = keystone.attach(policy, k=4, site="act", rule="medoid", seed=0)
    policy.act(ONE)
    assert repr(handle).startswith(
        "<KeyStone: K=4, rule medoid, adapter site, plain path, 1 rounds; last: medoid selected candidate "
    )


class Wide(torch.nn.Module):
    """Chunks of 12 steps and 32 dimensions, of which 7 are real; ten steps are executed, from the second on."""

    def sample(self):
        return torch.randn(1, 12, 32)


class WideAdapter(SiteAdapter):
    name = "wide"

    def __init__(self, padded=""):
        super().__init__(Wide(), "sample")
        self.padded = padded

    def owns(self, policy):
        return isinstance(policy, Wide)

    def window(self, config):
        return adapter.Window(7, 1, 10)


@pytest.fixture(params=["", "chunks are padded"])
def wide(request, monkeypatch):
    monkeypatch.setitem(ADAPTERS, "wide", WideAdapter(request.param))
    return Wide()


def counted(handle, delay=0):
    """The steps and dimensions that count in a round."""
    layout = handle.engine.selector.space_for(torch.zeros(1, 4, 12, 32), delay).layout(12, 32)
    return list(layout.steps), sorted({*layout.plain, *(dim for dim, _ in layout.grippers)})


REAL = list(range(7))


@pytest.mark.parametrize(
    ("options", "steps", "dims"),
    [
        ({}, range(1, 11), REAL),
        ({"space": ActionSpace(steps=5)}, range(5), REAL),
        ({"space": ActionSpace(dims=[0, 2])}, range(1, 11), [0, 2]),
        ({"space": ActionSpace(gripper={6: 0})}, range(1, 11), REAL),
        ({"space": ActionSpace(gripper={6: 0}), "execute": 5}, range(1, 6), REAL),
        ({"space": ActionSpace(steps=slice(None))}, range(12), REAL),
        ({"space": ActionSpace(dims=slice(None)), "execute": 3}, range(1, 4), list(range(32))),
        ({"execute": 11}, range(1, 12), REAL),
        ({"execute": 30}, range(1, 12), REAL),
    ],
)
def test_what_a_space_leaves_open_comes_from_the_policy(wide, options, steps, dims):
    assert counted(keystone.attach(wide, k=4, **options)) == (list(steps), dims)


def test_a_delay_moves_the_executed_steps(wide):
    handle = keystone.attach(wide, k=4, space=ActionSpace(gripper={6: 0}), execute=5)
    assert counted(handle, delay=2) == ([3, 4, 5, 6, 7], REAL)


def test_rules_that_look_back_look_past_what_is_executed(wide, caplog, monkeypatch):
    """Steps that count are not steps that are executed: only `execute` and the policy say those."""

    def watched(candidates, rule, *args, **options):
        compared.append(rule)
        return keystone.select(candidates, rule, *args, **options)

    compared = []
    monkeypatch.setattr("keystone_robotics.sample.selector.select", watched)
    for options, executed in (({"space": ActionSpace(steps=2)}, 10), ({"execute": 3}, 3)):
        handle = keystone.attach(wide, k=4, rule="coherent", **options)
        selector = handle.engine.selector
        before = selector.select(torch.randn(1, 4, 12, 32))
        selector.remember(before)
        selector.select(torch.randn(1, 4, 12, 32))
        assert np.array_equal(compared[-1].previous, before.chunk[:, executed:])
        keystone.detach(wide)
    assert not caplog.records


def test_a_rule_that_cannot_look_back_says_why(policy, caplog):
    keystone.attach(policy, k=4, rule="coherent", site="act", space=ActionSpace(steps=2))
    for _ in range(3):
        policy.act(ONE)
    (warning,) = caplog.records
    assert "the number of executed steps is unknown (give execute=…)" in warning.message
