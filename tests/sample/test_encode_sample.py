"""The adapter for a policy of one's own."""

import pytest
import torch
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.sample.families import ADAPTERS
from keystone_robotics.sample.noise import initial_noise

ADAPTER = ADAPTERS["encode/sample"]
SHAPE = (6, 2)


class Own(nn.Module):
    """Contexts are of the kind that `pack` makes."""

    stochastic = False

    def __init__(self, pack=lambda context: context, unpack=lambda context: context):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.pack, self.unpack = pack, unpack
        self.encoded = 0

    def forward(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), *SHAPE))

    def encode(self, observation):
        self.encoded += 1
        return self.pack(self.layer(observation))

    def sample(self, context, noise):
        return torch.tanh(self.unpack(context)[:, None] + noise)


class Wandering(Own):
    """Draws more noise on its way."""

    stochastic = True

    def sample(self, context, noise):
        for _ in range(2):
            noise = noise + 0.1 * torch.randn_like(noise)
        return super().sample(context, noise)


class Secretive(Wandering):
    """And does not say so."""

    stochastic = False


CONTEXTS = {
    "tensor": (lambda c: c, lambda c: c),
    "tuple": (lambda c: (c, 2 * c), lambda c: c[1] - c[0]),
    "dict": (lambda c: {"state": [c, None], "task": "reach"}, lambda c: c["state"][0]),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def rounds_of(policy, observation, k, seeds):
    rounds = []
    handle = keystone.attach(policy, k=k, check="all")
    handle.subscribe(rounds.append)
    with torch.no_grad(), handle.seeded(seeds):
        policy(observation)
        policy.encoded = 0
        policy(observation)
    keystone.detach(policy)
    return rounds


@pytest.mark.parametrize("name", CONTEXTS)
def test_candidates_are_single_calls(name):
    policy, observation, k, seeds = Own(*CONTEXTS[name]), torch.randn(3, 3), 4, [5, 6, 7]
    candidates = rounds_of(policy, observation, k, seeds)[1].candidates
    assert policy.encoded == 1
    noise = initial_noise(seeds, k, SHAPE).unflatten(0, (3, k))
    with torch.no_grad():
        for j in range(k):
            torch.testing.assert_close(candidates[:, j], policy.sample(policy.encode(observation), noise[:, j]))


def test_a_stochastic_policy_is_seeded_all_the_way():
    policy, observation = Wandering(), torch.randn(3, 3)
    first, second = rounds_of(policy, observation, 4, [5, 6, 7])
    torch.testing.assert_close(first.candidates, second.candidates, rtol=0, atol=0)
    alone = rounds_of(policy, observation[1:2], 1, [6])[0].candidates
    torch.testing.assert_close(alone[0, 0], first.candidates[1, 0])


def test_a_stochastic_policy_that_does_not_say_so_is_found_out():
    policy = Secretive()
    handle = keystone.attach(policy, k=4)
    with pytest.raises(KeystoneError, match="self-check failed"), handle.seeded([1]):
        policy(torch.zeros(1, 3))


def test_one_candidate_is_the_policy_itself_bit_for_bit():
    policy, observation = Own(), torch.randn(3, 3)
    torch.manual_seed(1)
    expected = policy(observation)
    keystone.attach(policy, k=1)
    torch.manual_seed(1)
    assert torch.equal(policy(observation), expected)


def test_detaching_leaves_no_trace():
    policy = Own()
    before, kind = dict(vars(policy)), type(policy)
    handle = keystone.attach(policy, k=4)
    assert handle.adapter == "encode/sample"
    assert isinstance(policy, Own)
    policy(torch.randn(2, 3))
    keystone.detach(policy)
    assert type(policy) is kind
    assert vars(policy).keys() == before.keys()
    assert "sample" not in vars(policy)


def with_sample(function):
    return type("Other", (), {"encode": lambda self, observation: observation, "sample": function})()


@pytest.mark.parametrize(
    "other",
    [
        with_sample(lambda self, batch: batch),
        with_sample(lambda self, noise, context: noise),
        with_sample(lambda self, context, noise, steps=10: noise),
        with_sample(lambda self, *args: args),
        with_sample(lambda self, context, noise, **kwargs: noise),
        with_sample("sample"),
        type("NoEncode", (), {"sample": lambda self, context, noise: noise})(),
        torch.distributions.Normal(0.0, 1.0),
    ],
)
def test_others_are_left_alone(other):
    assert not ADAPTER.owns(other)


def test_an_object_that_is_no_module():
    class Plain:
        def encode(self, observation):
            return observation

        def sample(self, context, noise):
            return context[:, None] + noise

        def act(self, observation):
            return self.sample(self.encode(observation), torch.randn(len(observation), 4, 2))

    policy = Plain()
    handle = keystone.attach(policy, k=8, seed=0)
    assert policy.act(torch.zeros(2, 2)).shape == (2, 4, 2)
    assert handle.stats["rounds"] == 1


def test_a_sampler_that_may_draw_its_own_noise_is_not_for_it():
    """Such a policy calls sample without noise, which the adapter could not answer."""

    class Drawing(Own):
        def sample(self, context, noise=None):
            return super().sample(context, noise)

    assert not ADAPTER.owns(Drawing())
    with pytest.raises(KeystoneError, match=r"sample\(context, noise\), with these parameter names"):
        keystone.attach(Drawing())


def test_a_policy_with_other_names_of_parameters_is_told_so():
    class Short:
        def encode(self, o):
            return o

        def sample(self, c, n):
            return n

    with pytest.raises(KeystoneError, match=r"^Short has encode\(o\) and sample\(c, n\): name the param"):
        keystone.attach(Short())
    with pytest.raises(KeystoneError, match="'lerobot/smolvla_base' is a str: expected a policy object, not its name"):
        keystone.attach("lerobot/smolvla_base")


def test_an_adapter_of_the_users_own_goes_first(monkeypatch):
    class Mine(type(ADAPTER)):
        name, project = "mine", "us"

        def owns(self, policy):
            return type(policy) is Own

    monkeypatch.setitem(ADAPTERS, "mine", Mine())
    assert keystone.attach(Own()).adapter == "mine"


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda context: (context, torch.tensor(3.0)), r"shape \(\) for 2 observations"),
        (lambda context: context.T, r"shape \(2, 2\)|one row for each"),
        (lambda context: {"state": context, "what": object()}, "encode returned a object"),
    ],
)
def test_contexts_without_a_row_for_each_observation_are_refused(pack, message):
    def unpack(context):
        return (
            context
            if isinstance(context, torch.Tensor)
            else context[0]
            if isinstance(context, tuple)
            else context["state"]
        )

    policy = Own(pack, unpack)
    keystone.attach(policy, k=4)
    rows = 3 if "2, 2" in message else 2
    with torch.no_grad(), pytest.raises(KeystoneError, match=message.replace("(2, 2", "(2, 3")):
        policy(torch.zeros(rows, 3))


class OneRow(Own):
    def sample(self, context, noise):
        return super().sample(context, noise.reshape(1, *SHAPE))


def test_a_sampler_for_one_row_is_told_what_to_take():
    keystone.attach(policy := OneRow(), k=4)
    with pytest.raises(KeystoneError, match=r"RuntimeError: shape.*The method must take B \* K rows"):
        policy(torch.zeros(1, 3))


def test_flat_chunks_are_refused():
    class Flat(Own):
        def sample(self, context, noise):
            return super().sample(context, noise).flatten(1)

    policy = Flat()
    keystone.attach(policy, k=4)
    with torch.no_grad(), pytest.raises(KeystoneError, match=r"chunks of shape \(12,\).*expected \(T, D\)"):
        policy(torch.zeros(2, 3))


class Stepping(Own):
    """Reads its number of steps where the adapter looks for it."""

    num_inference_steps = 4

    def sample(self, context, noise):
        for _ in range(self.num_inference_steps):
            noise = noise + torch.tanh(self.unpack(context)[:, None] - noise) / self.num_inference_steps
        return noise


def test_steps_are_read_by_sample_and_leave_no_trace():
    policy, observation = Stepping(), torch.randn(2, 3)
    before = dict(vars(policy))
    handle = keystone.attach(policy, k=4, seed=0, steps=2, check="all", keep=2)
    rounds = []
    handle.subscribe(rounds.append)
    policy(observation)
    assert (handle.steps, policy.num_inference_steps) == (2, 4)
    assert "K=4, steps=2, rule keystone" in repr(handle)
    twin = Stepping()
    twin.load_state_dict(policy.state_dict())
    twin.num_inference_steps = 2
    noise = initial_noise(rounds[0].seeds, 4, SHAPE).unflatten(0, (2, 4))
    expected = torch.stack([twin.sample(twin.encode(observation), noise[:, j]) for j in range(4)], 1)
    torch.testing.assert_close(rounds[0].candidates, expected)
    keystone.detach(policy)
    assert set(vars(policy)) == set(before), "an attribute of the class became one of the object"


def test_a_policy_without_that_attribute_is_told_its_name():
    policy = Own()
    with pytest.raises(
        KeystoneError, match=r"^steps=2: a Own has no attribute num_inference_steps, .*leave steps out$"
    ):
        keystone.attach(policy, k=4, steps=2)
    assert keystone.attached(policy) is None
    handle = keystone.attach(policy, k=4)
    with pytest.raises(KeystoneError, match=r"^steps=2: a Own has no attribute"):
        handle.steps = 2
    assert handle.steps is None


def test_an_attribute_that_cannot_be_set_is_refused():
    class Fixed(Stepping):
        num_inference_steps = property(lambda self: 4)

    policy = Fixed()
    with pytest.raises(
        KeystoneError, match=r"^steps=2: num_inference_steps of a Fixed cannot be set .*leave steps out$"
    ):
        keystone.attach(policy, k=4, steps=2)
    assert keystone.attached(policy) is None
