"""What others put on a network is run, whichever path is fast: hooks, engines, compiled functions, adapters of projections."""

import gc
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import keystone_robotics as keystone
from keystone_robotics.sample.families.fastwam.denoiser import blocks_of
from keystone_robotics.sample.kit.bypass import Bypass
from tiny import POLICIES

Part = Callable[[Any], Any]


def experts(policy: Any) -> Any:
    return policy.model.vlm_with_expert


def gemma(policy: Any) -> Any:
    return policy.model.paligemma_with_expert.gemma_expert.model


def transformer(policy: Any) -> Any:
    return policy._groot_model.action_head.model


def case(name: str, *values: Any, id: str) -> Any:
    """All cases of a policy share a worker, which builds it once."""
    return pytest.param(name, *values, id=f"{name}, {id}")


def draw(policy: Any, name: str, handle: keystone.Handle) -> Tensor:
    """The candidates (B, K, T, D) of a round, always from the same noise."""
    rounds: list[Any] = []
    handle.subscribe(rounds.append)
    with handle.seeded(5):
        POLICIES[name].predict(policy, POLICIES[name].batch(2))
    return rounds[0].candidates


def compare(
    policy: Any, name: str, caplog: pytest.LogCaptureFixture, put_on: Callable[[list[int]], AbstractContextManager[Any]]
) -> tuple[list[str], list[int], Tensor]:
    """Rounds on a path that was fast until something was put on the network, which counts how often it was run.

    Returns:
        the paths before, with and after it; how often it was run in a round and in one of the plain path, of which each
        candidate was compared with the policy's own call; and the largest difference between the candidates of the two.
    """
    caplog.set_level(logging.INFO, logger="keystone")
    calls: list[int] = []
    paths, counts, candidates = [], [], []

    def counted(handle: keystone.Handle) -> None:
        calls.clear()
        candidates.append(draw(policy, name, handle))
        counts.append(len(calls))

    fast = keystone.attach(policy, k=3, seed=0)
    before = draw(policy, name, fast)
    paths.append(fast.path)
    with put_on(calls):
        draw(policy, name, fast)
        counted(fast)
        paths.append(fast.path)
    after = draw(policy, name, fast)
    paths.append(fast.path)
    torch.testing.assert_close(after, before)
    keystone.detach(policy)
    with put_on(calls):
        plain = keystone.attach(policy, k=3, seed=0, check="all", fast=False)
        draw(policy, name, plain)
        counted(plain)
    keystone.detach(policy)
    assert (candidates[1] - before).abs().max() > 1e-3, "what was put on has no effect: this test has no teeth"
    return paths, counts, (candidates[0] - candidates[1]).abs().max()


def changed(output: Any) -> Any:
    if isinstance(output, tuple):
        return (changed(output[0]), *output[1:])
    return 0.5 * output + 0.1  # not a factor alone, which the next norm would take out


def assert_used(found: tuple[list[str], list[int], Tensor], caplog: pytest.LogCaptureFixture) -> None:
    """On the plain path, as often and with the same result as it always is, and with a line at every change."""
    paths, (calls, plain_calls), difference = found
    assert paths == ["fast", "plain", "fast"]
    assert calls == plain_calls > 0
    assert difference == 0
    logged = [record.levelname for record in caplog.records if "bypass" in record.message]
    assert logged == ["WARNING", "INFO"]


def changing_hook(module: nn.Module) -> Callable[[list[int]], AbstractContextManager[None]]:
    """Puts a hook on a module that counts its calls and changes the output."""

    @contextmanager
    def put_on(calls: list[int]) -> Iterator[None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
            calls.append(1)
            return changed(output)

        handle = module.register_forward_hook(hook)
        yield
        handle.remove()

    return put_on


HOOKED = [
    case("pi0", lambda policy: gemma(policy).layers[1], id="layer"),
    case("pi0", lambda policy: gemma(policy).layers[0].self_attn, id="attention"),
    case("pi05", lambda policy: gemma(policy).layers[1], id="layer"),
    case("pi05", lambda policy: gemma(policy).layers[0].self_attn, id="attention"),
    case("groot", transformer, id="network"),
    case("groot", lambda policy: transformer(policy).transformer_blocks[0], id="block"),
    case("groot", lambda policy: transformer(policy).transformer_blocks[1].attn1, id="attention"),
    case("groot", lambda policy: transformer(policy).transformer_blocks[1].attn1.to_out[1], id="dropout"),
    case("groot", lambda policy: transformer(policy).transformer_blocks[1].norm1, id="norm"),
    case("fastwam", lambda policy: policy.model.mot.layers[1], id="layer"),
]


@pytest.mark.parametrize(("name", "part"), HOOKED)
def test_hook_that_the_fast_path_would_pass_by(
    name: str, policy: Any, part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    assert_used(compare(policy, name, caplog, changing_hook(part(policy))), caplog)


REPLACED = [
    case("smolvla", experts, "forward", id="both"),
    case("smolvla", experts, "eager_attention_forward", id="attention"),
    case("pi0", lambda policy: policy.model.paligemma_with_expert, "forward", id="both"),
    case("pi0", gemma, "forward", id="expert"),
    case("pi05", gemma, "forward", id="expert"),
    case("groot", transformer, "forward", id="network"),
    case("groot", lambda policy: transformer(policy).transformer_blocks[1], "forward", id="block"),
    case("fastwam", lambda policy: policy.model.mot, "forward_action_with_video_cache", id="expert"),
    case("fastwam", lambda policy: blocks_of(policy.model.mot)[1], "apply_cross_attention", id="cross-attention"),
]


@pytest.mark.parametrize(("name", "part", "method"), REPLACED)
def test_engine_that_the_fast_path_would_pass_by(
    name: str, policy: Any, part: Part, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def put_on(calls: list[int]) -> Iterator[None]:
        holder = part(policy)
        own = getattr(holder, method)

        def engine(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            output = own(*args, **kwargs)
            if hasattr(output, "last_hidden_state"):
                output.last_hidden_state = changed(output.last_hidden_state)
                return output
            if isinstance(output, tuple):  # of both experts, and their cache
                return [None if part is None else changed(part) for part in output[0]], output[1]
            return changed(output)

        vars(holder)[method] = engine
        yield
        del vars(holder)[method]

    assert_used(compare(policy, name, caplog, put_on), caplog)


CALLED = [
    case("smolvla", lambda policy: experts(policy).lm_expert.layers[0].self_attn.o_proj, id="projection"),
    case("smolvla", lambda policy: experts(policy).lm_expert.layers[1].self_attn.k_proj, id="keys of the prefix"),
    case("smolvla", lambda policy: experts(policy).lm_expert.layers[1].mlp, id="feed-forward"),
    case("pi0", lambda policy: gemma(policy).layers[0].self_attn.o_proj, id="projection"),
    case("pi05", lambda policy: gemma(policy).layers[1].mlp, id="feed-forward"),
    case("groot", lambda policy: transformer(policy).transformer_blocks[0].ff, id="feed-forward"),
    case("fastwam", lambda policy: blocks_of(policy.model.mot)[0].ffn, id="feed-forward"),
]


@pytest.mark.parametrize(("name", "part"), CALLED)
def test_hook_on_what_is_called_leaves_the_path_fast(
    name: str, policy: Any, part: Part, caplog: pytest.LogCaptureFixture
) -> None:
    paths, (calls, _), difference = compare(policy, name, caplog, changing_hook(part(policy)))
    assert paths == ["fast"] * 3
    assert calls > 0
    assert difference < 1e-4


class LowRank(nn.Module):
    """A projection with an update beside it, as PEFT wraps them: its weight alone does not tell what it computes."""

    def __init__(self, base: nn.Linear, calls: list[int]) -> None:
        super().__init__()
        self.base, self.calls, self.out_features = base, calls, base.out_features
        self.weight = base.weight
        generator = torch.Generator().manual_seed(0)
        self.down = nn.Parameter(torch.randn(2, base.in_features, generator=generator), requires_grad=False)
        self.up = nn.Parameter(torch.randn(base.out_features, 2, generator=generator), requires_grad=False)

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls.append(1)
        return self.base(hidden) + 0.1 * hidden @ self.down.T @ self.up.T


ADAPTED = [
    case("smolvla", lambda policy: (experts(policy).lm_expert.layers[1].self_attn, "v_proj"), id="values"),
    case("pi05", lambda policy: (gemma(policy).layers[0].self_attn, "q_proj"), id="queries"),
    case("groot", lambda policy: (transformer(policy).transformer_blocks[0].attn1, "to_k"), id="keys"),
    case("fastwam", lambda policy: (blocks_of(policy.model.mot)[0].cross_attn, "q"), id="queries"),
]


@pytest.mark.parametrize(("name", "part"), ADAPTED)
def test_adapted_projection_is_called(name: str, policy: Any, part: Part, caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def put_on(calls: list[int]) -> Iterator[None]:
        holder, projection = part(policy)
        base = getattr(holder, projection)
        setattr(holder, projection, LowRank(base, calls))
        yield
        setattr(holder, projection, base)

    paths, (calls, _), difference = compare(policy, name, caplog, put_on)
    assert paths == ["fast"] * 3
    assert calls > 0
    assert difference < 1e-4


@pytest.mark.parametrize("name", ["pi05"])
def test_hook_that_was_there_before(name: str, policy: Any) -> None:
    hook = gemma(policy).layers[0].register_forward_pre_hook(lambda *_: None)
    handle = keystone.attach(policy, k=3, seed=0, check="all")
    draw(policy, name, handle)
    assert (handle.path, handle.engine.finding.path) == ("plain", "plain")
    hook.remove()
    draw(policy, name, handle)
    assert (handle.path, handle.engine.finding.path) == ("fast", "fast")


@pytest.mark.parametrize("name", ["pi05"])
def test_nothing_is_said_where_no_fast_path_is_wanted(name: str, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    hook = gemma(policy).layers[0].register_forward_pre_hook(lambda *_: None)
    draw(policy, name, keystone.attach(policy, k=3, seed=0, fast=False))
    hook.remove()
    assert not caplog.records


# Of any network


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.linear = nn.Identity(), nn.Linear(2, 2)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(self.attention(hidden))


BYPASS = Bypass(frozenset({"linear"}))
SEEN: dict[Any, Any] = {}


@pytest.fixture
def network() -> nn.Sequential:
    SEEN.clear()
    network = nn.Sequential(Block(), Block())
    assert BYPASS.obstacle(network, SEEN) == ""
    return network


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_every_kind_of_hook_is_found(network: nn.Sequential, register: str) -> None:
    hook = getattr(network[1].attention, register)(lambda *_: None)
    assert BYPASS.obstacle(network, SEEN) == "there is a hook on 1.attention (Identity)"
    hook.remove()
    assert BYPASS.obstacle(network, SEEN) == ""


def test_hook_on_all_modules_is_found(network: nn.Sequential) -> None:
    hook = register_module_forward_hook(lambda *_: None)
    assert BYPASS.obstacle(network, SEEN) == "there is a hook on all modules"
    hook.remove()
    assert BYPASS.obstacle(network, SEEN) == ""


def test_hooks_that_were_all_thrown_away_are_found_when_they_come_back(network: nn.Sequential) -> None:
    network[0]._forward_hooks = OrderedDict()
    network[0].register_forward_hook(lambda *_: None)
    assert BYPASS.obstacle(network, SEEN) == "there is a hook on 0 (Block)"


def test_compiled_blocks_are_found(network: nn.Sequential) -> None:
    network[0].compile(backend="eager")
    assert BYPASS.obstacle(network, SEEN) == "0 (Block) was compiled"
    network[0]._compiled_call_impl = None
    assert BYPASS.obstacle(network, SEEN) == ""
    own = network[1]
    network[1] = torch.compile(own, backend="eager")
    assert BYPASS.obstacle(network, SEEN) == "forward of 1 (OptimizedModule) was replaced"
    network[1] = own
    assert BYPASS.obstacle(network, SEEN) == ""


def test_exchanged_block_is_watched_too(network: nn.Sequential) -> None:
    network[0] = Block()
    assert BYPASS.obstacle(network, SEEN) == ""
    network[0].forward = lambda hidden: hidden
    assert BYPASS.obstacle(network, SEEN) == "forward of 0 (Block) was replaced"


def test_own_method_that_was_put_back_is_no_obstacle(network: nn.Sequential) -> None:
    own = network[0].forward
    network[0].forward = lambda hidden: hidden
    assert BYPASS.obstacle(network, SEEN) == "forward of 0 (Block) was replaced"
    network[0].forward = own
    assert BYPASS.obstacle(network, SEEN) == ""
    network[0].forward = network[1].forward
    assert BYPASS.obstacle(network, SEEN) == "forward of 0 (Block) was replaced"


def test_what_is_called_is_left_alone(network: nn.Sequential) -> None:
    network[0].linear.register_forward_hook(lambda *_: None)
    network[0].linear.forward = network[0].linear.forward
    assert BYPASS.obstacle(network, SEEN) == ""


def test_policy_that_was_watched_is_freed_with_what_was_put_back_on_it() -> None:
    policy = POLICIES["groot"].build().requires_grad_(False)
    network = policy._groot_model.action_head.model
    network.forward = network.forward
    handle = keystone.attach(policy, k=2, seed=0)
    POLICIES["groot"].predict(policy, POLICIES["groot"].batch(1))
    assert handle.path == "fast"
    watched = weakref.ref(network)
    del policy, network, handle
    gc.collect()
    assert watched() is None
