"""Attached policies in several threads, in copies and in pickles: the policy is attached or it is not, never in between."""

import contextlib
import copy
import importlib
import io
import pickle
import sys
import threading
import time

import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics import KeystoneError
from keystone_robotics.sample import usage
from tiny import batch, build


class Policy(torch.nn.Module):
    """The encode / sample contract, slow on demand."""

    pause = 0.0

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def encode(self, observation):
        return observation * self.weight

    def sample(self, context, noise):
        time.sleep(self.pause)
        return context[:, None] + noise

    def forward(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), 8, 2))


class Slow(Policy):
    pause = 0.02


class Site(torch.nn.Module):
    def act(self, observation):
        return observation[:, None] + torch.randn(len(observation), 8, 2)


ONE = torch.zeros(1, 2)
attach_module = importlib.import_module("keystone_robotics.attachment")


def is_plain(policy):
    """Nothing of KeyStone is left on the policy, and it works."""
    assert type(policy) in (Policy, Slow, Site)
    assert "_keystone" not in vars(policy)
    assert keystone.attached(policy) is None
    return True


def in_threads(count, work):
    errors = []

    def guarded(number):
        try:
            work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return errors


def test_attach_and_detach_from_several_threads():
    """Every thread attaches, calls and detaches the same policies: attaching twice is refused, nothing breaks."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        policies = [Policy() for _ in range(40)]

        def work(number):
            for policy in policies:
                with contextlib.suppress(KeystoneError):  # another thread was faster
                    keystone.attach(policy, k=2, check=False)
                assert policy(ONE).shape == (1, 8, 2)
                keystone.detach(policy)
                assert policy(ONE).shape == (1, 8, 2)

        errors = in_threads(4, work)
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    for policy in policies:
        assert is_plain(policy)
        keystone.attach(policy, k=2)
        policy(ONE)
        keystone.detach(policy)


@pytest.mark.parametrize("kind", ["contract", "site"])
def test_detach_during_rounds_of_other_threads(kind):
    policy = Slow() if kind == "contract" else Site()
    call = policy if kind == "contract" else lambda seen: policy.act(seen)
    options = {} if kind == "contract" else {"site": "act"}
    stop = threading.Event()

    def work(number):
        if number == 0:
            for _ in range(25):
                keystone.attach(policy, k=2, check=False, **options)
                time.sleep(0.003)
                keystone.detach(policy)
            stop.set()
        while not stop.is_set():
            assert call(ONE).shape == (1, 8, 2)

    assert in_threads(4, work) == []
    assert is_plain(policy)


def test_two_threads_attach_the_same_policy(monkeypatch):
    """The second finds it attached, however long the first takes; otherwise both override it, and nobody can undo that."""
    watch = attach_module.watch_methods
    monkeypatch.setattr(attach_module, "watch_methods", lambda engine: (time.sleep(0.2), watch(engine)))
    policy = build("diffusion")
    own = type(policy.diffusion)
    errors = in_threads(2, lambda _: keystone.attach(policy, k=2))
    assert ["already" in str(error) for error in errors] == [True]
    keystone.detach(policy)
    assert type(policy.diffusion) is own
    assert "_keystone" not in vars(policy.diffusion)


def test_detach_in_the_middle_of_a_round():
    policy = build("diffusion")
    own = type(policy.diffusion)
    keystone.attach(policy, k=2)
    threads = []

    def detach_now(*_):
        if not threads:
            threads.append(threading.Thread(target=keystone.detach, args=(policy,)))
            threads[0].start()
            threads[0].join(0.3)
            assert threads[0].is_alive()  # waits for this round
            assert type(policy.diffusion) is not own

    policy.diffusion.unet.register_forward_pre_hook(detach_now)
    policy.reset()
    policy.select_action(batch("diffusion"))
    threads[0].join(60)
    assert keystone.attached(policy) is None
    assert type(policy.diffusion) is own


def test_a_listener_may_detach():
    policy = Policy()
    handle = keystone.attach(policy, k=4)
    handle.subscribe(lambda event: keystone.detach(policy))
    assert policy(ONE).shape == (1, 8, 2)
    assert is_plain(policy)
    assert handle.stats["rounds"] == 1


def test_detach_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(usage, "DETACH_SECONDS", 0.05)
    policy = Policy()
    handle = keystone.attach(policy, k=2, check=False)
    begun, go_on = threading.Event(), threading.Event()
    handle.subscribe(lambda event: (begun.set(), go_on.wait(20)))
    thread = threading.Thread(target=policy, args=(ONE,))
    thread.start()
    begun.wait(20)
    with pytest.raises(KeystoneError, match="a round of this policy has been running for 0 s"):
        keystone.detach(policy)
    go_on.set()
    thread.join()
    assert keystone.attached(policy) is not None
    keystone.detach(policy)
    assert is_plain(policy)


def test_a_shallow_copy_of_the_overridden_object_is_plain():
    policy = Policy()
    handle = keystone.attach(policy, k=4)
    twin = copy.copy(policy)
    assert is_plain(twin)
    keystone.detach(twin)
    assert keystone.attached(policy) == handle
    policy(ONE)
    assert handle.stats["rounds"] == 1
    twin(ONE)
    assert handle.stats["rounds"] == 1


def test_detaching_a_shallow_copy_leaves_the_original_attached():
    """The override of a LeRobot policy is on a module inside it, which both share."""
    policy = build("diffusion")
    handle = keystone.attach(policy, k=2)
    twin = copy.copy(policy)
    with pytest.raises(
        KeystoneError, match="is a shallow copy of an attached policy, with which it shares its modules"
    ):
        keystone.detach(twin)
    assert keystone.attached(policy) == handle
    keystone.detach(policy)
    assert keystone.attached(policy) is None


def saved_by_torch(policy):
    file = io.BytesIO()
    torch.save(policy, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


SAVERS = {
    "pickle": lambda policy: pickle.loads(pickle.dumps(policy)),
    "pickle 2": lambda policy: pickle.loads(pickle.dumps(policy, protocol=2)),
    "torch": saved_by_torch,
}


@pytest.mark.parametrize("save", SAVERS.values(), ids=SAVERS)
@pytest.mark.parametrize("kind", ["contract", "site"])
def test_a_pickled_policy_is_the_policy_without_keystone(save, kind):
    policy = Policy() if kind == "contract" else Site()
    handle = keystone.attach(policy, k=4, **({} if kind == "contract" else {"site": "act"}))
    twin = save(policy)
    assert is_plain(twin)
    assert keystone.attached(policy) == handle
    for name, value in policy.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value)
    assert b"keystone" not in pickle.dumps(policy).lower()


def test_a_pickled_lerobot_policy():
    policy = build("diffusion")
    seen = batch("diffusion")
    torch.manual_seed(0)
    policy.reset()
    expected = policy.select_action(dict(seen))
    handle = keystone.attach(policy, k=4)
    twin = pickle.loads(pickle.dumps(policy))
    assert b"keystone_robotics" not in pickle.dumps(policy)
    assert keystone.attached(twin) is None
    assert type(twin.diffusion) is type(build("diffusion").diffusion)
    torch.manual_seed(0)
    twin.reset()
    assert torch.equal(twin.select_action(dict(seen)), expected)
    keystone.attach(twin, k=2)  # and can be attached to
    twin.reset()
    twin.select_action(dict(seen))
    assert keystone.attached(policy) == handle


def test_steps_are_not_pickled():
    policy = build("diffusion")
    own = policy.diffusion.num_inference_steps
    keystone.attach(policy, k=2, steps=2)
    policy.reset()
    policy.select_action(batch("diffusion"))
    assert pickle.loads(pickle.dumps(policy)).diffusion.num_inference_steps == own != 2


def test_a_deep_copy_stays_attached():
    policy = Policy()
    handle = keystone.attach(policy, k=4)
    twin = copy.deepcopy(policy)
    twin(ONE)
    assert (keystone.attached(twin).stats["rounds"], handle.stats["rounds"]) == (1, 0)
    keystone.detach(twin)
    assert is_plain(twin)
    assert keystone.attached(policy) == handle


class Broken(Policy):
    returns = None

    def sample(self, context, noise):
        return self.returns


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (None, "the sampler returned NoneType for K=4 and 1 observations: expected 4 chunks"),
        (torch.zeros(0, 8, 2), r"the sampler returned shape \(0, 8, 2\) for K=4 and 1 observations: expected 4 chunks"),
        (torch.zeros(4, 0, 2), "the sampler returned no numbers"),
        (torch.zeros(()), r"the sampler returned shape \(\)"),
    ],
)
def test_a_sampler_that_returns_nothing(returns, message):
    policy = Broken()
    policy.returns = returns
    keystone.attach(policy, k=4, check=False)
    with pytest.raises(KeystoneError, match=message):
        policy(ONE)


def test_more_candidates_than_memory():
    policy = Policy()
    keystone.attach(policy, k=10**13, check=False)
    with pytest.raises(
        KeystoneError, match=r"^K=10000000000000 candidates do not fit into the memory of this machine"
    ) as raised:
        policy(ONE)
    assert isinstance(raised.value, MemoryError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rule", value) for value in (None, 3, "mediod", "medoid:k=4", lambda: 0, [], torch.nn.ReLU)),
        *(
            ("space", value)
            for value in (7, {"dims": 7}, "dims=7", keystone.ActionSpace(dims=3), keystone.ActionSpace(steps=9))
        ),
        *(("execute", value) for value in (0, -1, 2.5, "8", True, 9)),
        *(("metric", value) for value in (None, "l3", 2)),
        *(("k", value) for value in (0, None, "auto", 2.0, True)),
        *(("steps", value) for value in (0, 1.5, "2")),
    ],
)
def test_wrong_settings_are_refused_when_assigned(name, value):
    policy = Policy()
    handle = keystone.attach(policy, k=4)
    policy(ONE)
    before = getattr(handle, name)
    with pytest.raises((ValueError, TypeError, KeystoneError)) as raised:
        setattr(handle, name, value)
    assert "\n" not in str(raised.value)
    assert getattr(handle, name) is before
    policy(ONE)
