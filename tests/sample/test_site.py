"""``site=``: an unknown method, vectorised, is checked like every adapter. Needs torch alone."""

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import keystone_robotics as keystone
from keystone_robotics import KeystoneError

OBSERVATION = torch.tensor([[0.5, -1.0]])
ROWS = torch.tensor([[0.5, -1.0], [2.0, 0.0], [0.0, 3.0]])


class Denoiser(nn.Module):
    """Four steps on (B, 6, 2); what subclasses do with the chunk is under test."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = nn.Linear(4, 2).requires_grad_(False)

    def denoise(self, observation: Tensor, noise: Tensor) -> Tensor:
        context, chunk = observation[:, None].expand(-1, 6, -1), noise
        for _ in range(4):
            chunk = chunk + self.network(torch.cat([context, chunk], -1)) / 4
        return chunk

    def act(self, observation: Tensor) -> Any:
        return self.denoise(observation, torch.randn(len(observation), 6, 2))


def attach(policy: Any, **options: Any) -> Any:
    return keystone.attach(policy, **{"k": 8, "seed": 0, "site": "act", "check": "all", **options})


def refused(policy: Any, observation: Tensor = OBSERVATION, **options: Any) -> str:
    """The message, of one line, with which a round is refused."""
    attach(policy, **options)
    with pytest.raises(KeystoneError) as caught:
        policy.act(observation)
    keystone.detach(policy)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("observation", [OBSERVATION, ROWS])
def test_candidates_are_compared_with_single_calls(observation: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "keystone")
    handle = attach(Denoiser())
    handle.engine.owner.act(observation)
    assert handle.engine.finding.compared == 8
    assert handle.engine.finding.difference < 1e-5
    assert "largest difference to 8 single calls" in caplog.text


def test_a_candidate_does_not_depend_on_k() -> None:
    drawn = []
    for k in (3, 8):
        handle = attach(Denoiser(), k=k)
        handle.subscribe(lambda event: drawn.append(event.candidates))
        handle.engine.owner.act(OBSERVATION)
    torch.testing.assert_close(drawn[0], drawn[1][:, :3])


class Counting(Denoiser):
    """A batch of one behaves unlike the K of a round: vectorised it is another function."""

    def denoise(self, observation: Tensor, noise: Tensor) -> Tensor:
        vectorised = torch._C._functorch.is_batchedtensor(noise)
        return super().denoise(observation, noise) + 0.01 * vectorised


def test_candidates_that_differ_from_single_calls_are_refused() -> None:
    assert "candidates differ from single calls under the same noise by 1.0e-02" in refused(Counting())


class Stochastic(Denoiser):
    """Draws through every function of torch that is known, also a number and a part of the rows."""

    def act(self, observation: Tensor) -> Tensor:
        chunk = self.denoise(observation, torch.normal(0.5, 2.0, (len(observation), 6, 2)))
        chunk = chunk + torch.normal(chunk, torch.full_like(chunk, 0.1)) + torch.rand_like(chunk)
        return chunk * torch.rand(()) + torch.distributions.Normal(torch.zeros(2), 0.3).sample()


def test_every_draw_is_repeated() -> None:
    handle = attach(Stochastic())
    handle.engine.owner.act(ROWS)
    assert handle.engine.finding.compared == 8


class Tokens(Denoiser):
    def act(self, observation: Tensor) -> Tensor:
        return super().act(observation) * torch.multinomial(torch.ones(9), 1)


def test_draws_that_cannot_be_repeated_are_refused_by_name() -> None:
    assert "also draws with multinomial" in refused(Tokens())
    handle = attach(Tokens(), check=False)
    handle.engine.owner.act(OBSERVATION)
    assert handle.engine.finding is None


class Dropping(Denoiser):
    def act(self, observation: Tensor) -> Tensor:
        return nn.functional.dropout(super().act(observation), 0.1, self.training)


def test_dropout_is_refused_while_it_trains() -> None:
    assert "also draws with dropout" in refused(Dropping())
    attach(policy := Dropping().eval())
    policy.act(OBSERVATION)


# State


class Remembers(Denoiser):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.last, self.queue, self.inner = where, None, deque([1], maxlen=3), nn.Module()
        self.register_buffer("mean", torch.zeros(2))

    def act(self, observation: Tensor) -> Tensor:
        chunk: Tensor = super().act(observation)
        if self.where == "queue[1]":
            self.queue.append(chunk[:, 0])
        elif self.where == "inner.last['chunk']":
            self.inner.last = {"chunk": chunk}
        elif self.where == "mean":
            self.mean = chunk.mean((0, 1))
        else:
            self.last = chunk
        return chunk


@pytest.mark.parametrize("where", ["last", "queue[1]", "inner.last.chunk", "mean"])
def test_a_method_that_stores_its_sample_is_refused_with_the_name(where: str) -> None:
    policy = Remembers(where if where != "inner.last.chunk" else "inner.last['chunk']")
    assert f"stores a tensor that depends on the noise in {where}, " in refused(policy)
    assert policy.last is None
    assert list(policy.queue) == [1]
    assert "last" not in vars(policy.inner)
    assert policy.mean.tolist() == [0, 0]


class WithHistory(Denoiser):
    """Acts on the sum of the last observations, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[Tensor] = []
        self.calls = 0

    def act(self, observation: Tensor) -> Tensor:
        self.history.append(observation)
        self.calls += 1
        return super().act(torch.stack(self.history).sum(0))


def test_the_self_check_leaves_state_as_one_call_does() -> None:
    policy = WithHistory()
    attach(policy)
    for _ in range(2):
        policy.act(OBSERVATION)
    assert policy.calls == len(policy.history) == 2


class KeepsNoise(Denoiser):
    def act(self, observation: Tensor) -> Tensor:
        chunk: Tensor = super().act(observation)
        self.seen = torch.zeros(2 if torch._C._functorch.is_batchedtensor(chunk) else 1)
        return chunk


def test_state_of_another_shape_is_refused_with_the_name() -> None:
    assert "seen has shape (2,), and (1,) after a single call" in refused(KeepsNoise())


# What cannot be vectorised


def _numpy_then_clip(chunk: Tensor) -> Any:
    return np.clip(chunk.numpy(), -1, 1)


def _if(chunk: Tensor) -> Tensor:
    return chunk if chunk.sum() > 0 else -chunk


def _assign(chunk: Tensor) -> Tensor:
    out = torch.zeros(1, 6, 2)
    out[:, :3] = chunk[:, :3]
    return out


def _add(chunk: Tensor) -> Tensor:
    out = torch.zeros(1, 6, 2)
    out += chunk
    return out


def _masked(chunk: Tensor) -> Tensor:
    return chunk[chunk > 0]


def _in_place(chunk: Tensor) -> Tensor:
    return chunk + torch.empty(1, 6, 2).normal_()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda chunk: chunk * chunk.max().item(), ".item()"),
        (_if, "torch.where"),
        (_assign, "writes candidates in place"),
        (_add, "write x = x + y"),
        (_masked, "a shape in it depends on the noise"),
        (_in_place, "draw with torch.randn"),
        (_numpy_then_clip, "return the tensor, and convert it in the caller"),
        (lambda chunk: torch.tensor(chunk.tolist()), "return the tensor, and convert it in the caller"),
        (lambda chunk: chunk.data.clamp(-1, 1), "it reads or writes .data"),
        (nn.BatchNorm1d(6), "put the policy into eval()"),
    ],
)
def test_what_cannot_be_vectorised_is_said_in_one_line(spoil: Any, reason: str) -> None:
    policy = Denoiser()
    policy.__class__ = type("Spoilt", (Denoiser,), {"act": lambda self, obs: spoil(Denoiser.act(self, obs))})
    message = refused(policy)
    assert message.startswith("the method cannot be vectorised over its noise: ")
    assert reason in message
    assert "docs/adapters.md" in message


class Strict(Denoiser):
    def act(self, observation: Tensor) -> Tensor:
        if observation.shape[1] != 2:
            raise ValueError("two numbers, please")
        return super().act(observation)


def test_an_error_of_the_method_itself_stays_its_own() -> None:
    attach(policy := Strict())
    for _ in range(2):
        with pytest.raises(ValueError, match="two numbers, please"):
            policy.act(torch.zeros(1, 3))
        policy.act(OBSERVATION)


class Causal(Denoiser):
    """Attention with a mask and is_causal: the math backend refuses what torch's own choice accepts."""

    def denoise(self, observation: Tensor, noise: Tensor) -> Tensor:
        mask = torch.ones(6, 6, dtype=torch.bool).tril()
        heads = noise[:, None]
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads, mask, is_causal=True)
        return super().denoise(observation, attended[:, 0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_attention_is_not_forced_to_a_backend_that_refuses_it() -> None:
    handle = attach(Causal())
    for _ in range(2):
        handle.engine.owner.act(OBSERVATION)
    assert handle.engine.finding.difference < 1e-5


# What a method returns


def returning(form: Any) -> Denoiser:
    policy = Denoiser()
    policy.__class__ = type("Returning", (Denoiser,), {"act": lambda self, obs: form(Denoiser.act(self, obs))})
    return policy


class Named(NamedTuple):
    action: Any
    value: Any


RETURNED = {
    "named tuple": (lambda chunk: Named(chunk, -chunk), {"chunk": "action"}),
    "dict": (lambda chunk: {"action": chunk, "info": {"steps": 4}}, {}),
    "dict of two": (lambda chunk: {"action": chunk[:, 1:4], "action_pred": chunk}, {"chunk": "action_pred"}),
    "tuple": (lambda chunk: (torch.zeros(2), chunk, "x"), {}),
    "tuple by index": (lambda chunk: (chunk.mean(2), chunk), {"chunk": 1}),
    "numpy": (lambda chunk: chunk.detach().cpu().numpy(), {}),
    "dict of numpy": (lambda chunk: {"actions": chunk.numpy()}, {}),
    "flat": (lambda chunk: chunk.flatten(1), {"shape": (6, 2)}),
    "flat in a dict": (lambda chunk: {"a": chunk.flatten(1), "b": 1}, {"shape": (6, 2), "chunk": "a"}),
}


@pytest.mark.parametrize("name", RETURNED)
@pytest.mark.parametrize("observation", [OBSERVATION, ROWS])
def test_the_chunk_is_found_and_returned_as_the_method_does(name: str, observation: Tensor) -> None:
    form, options = RETURNED[name]
    policy = returning(form)
    handle = attach(policy, rule="medoid", **options)
    events: list[Any] = []
    handle.subscribe(events.append)
    value = policy.act(observation)
    assert handle.engine.finding.compared == 8
    rows = torch.arange(len(observation))
    expected = form(events[0].candidates[rows, torch.as_tensor(events[0].selection.index)])
    assert str(value) == str(expected)
    assert type(value) is type(expected)


def test_one_chunk_without_a_batch() -> None:
    policy = returning(lambda chunk: chunk[0])
    attach(policy, shape=(6, 2))
    assert policy.act(OBSERVATION).shape == (6, 2)


@pytest.mark.parametrize(
    ("form", "options", "reason"),
    [
        (lambda chunk: {"a": chunk, "b": -chunk}, {}, "returns a dict with a, b, expected one tensor of chunks"),
        (lambda chunk: {"action": chunk}, {"chunk": "actoin"}, "did you mean 'action'?"),
        (lambda chunk: (chunk,), {"chunk": 3}, "chunk=3: the method returns a tuple of Tensor"),
        (lambda chunk: (chunk, None), {"chunk": 1}, "chunk=1: a NoneType there, expected chunks (B, T, D)"),
        (lambda chunk: SimpleNamespace(action=chunk), {}, "by itself or in a dict, list or tuple"),
        (lambda chunk: chunk.flatten(1), {}, r"returns shape (1, 12), expected one tensor of chunks (B, T, D); with"),
        (lambda chunk: chunk.flatten(1), {"shape": (5, 2)}, "shape=(5, 2): the method returns shape (1, 12)"),
        (lambda chunk: None, {}, "returns a NoneType, expected one tensor of chunks (B, T, D)"),
    ],
)
def test_what_is_no_chunk_is_refused(form: Any, options: dict[str, Any], reason: str) -> None:
    assert reason in refused(returning(form), **options)


def test_a_value_without_rows_cannot_follow_several_selections() -> None:
    policy = returning(lambda chunk: (chunk, chunk.sum()))
    assert "expected one row for each" in refused(policy, ROWS, chunk=0)
    attach(policy, chunk=0)
    assert policy.act(OBSERVATION)[1].shape == ()


@pytest.mark.parametrize(
    "options",
    [{"chunk": "action"}, {"shape": (6, 2)}, {"site": "act", "shape": 12}, {"site": "act", "shape": (6, 2, 1)}],
)
def test_options_of_a_site_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"give site= too|expected \(T, D\)"):
        keystone.attach(Denoiser(), k=4, **options)


def test_the_methods_own_autocast_sets_the_tolerance() -> None:
    def act(self: Any, observation: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.denoise(observation, torch.randn(len(observation), 6, 2)).float()

    policy = Denoiser()
    policy.__class__ = type("Autocast", (Denoiser,), {"act": act})
    handle = attach(policy)
    policy.act(ROWS)
    assert handle.engine.finding.compared == 8
    assert handle.engine.finding.difference > 1e-4  # otherwise the tolerance of float32 would do


def test_weights_in_a_coarse_dtype_set_the_tolerance() -> None:
    policy = Denoiser()
    policy.network.bfloat16()

    def act(self: Any, observation: Tensor) -> Tensor:
        return self.denoise(observation.bfloat16(), torch.randn(len(observation), 6, 2).bfloat16()).float()

    policy.__class__ = type("Coarse", (Denoiser,), {"act": act})
    handle = attach(policy)
    policy.act(ROWS)
    assert handle.engine.finding.compared == 8
