"""The paper's rule as pure tensor code, for CUDA graphs and ``torch.compile``."""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import Tensor

from keystone_robotics.select import branch_free
from keystone_robotics.select.engine import INITS, check_seed, starting_order
from keystone_robotics.select.metrics import (
    check_metric,
    constant,
    constant_when_compiled,
    usable_chunks,
    working_dtype,
)
from keystone_robotics.select.rounds import check_shape, not_floating
from keystone_robotics.select.rules.keystone import Keystone
from keystone_robotics.select.space import ActionSpace


class DeviceSelection(NamedTuple):
    """What `select_on_device` returns: tensors on the candidates' device, with a leading axis B for batched input.

    >>> DeviceSelection._fields
    ('index', 'chunk', 'clustered', 'consensus', 'spread', 'any_valid')
    """

    index: Tensor  # type: ignore[assignment]
    chunk: Tensor
    clustered: Tensor
    consensus: Tensor
    spread: Tensor
    any_valid: Tensor


def select_on_device(
    candidates: Tensor,
    space: ActionSpace | None = None,
    seed: int = 0,
    *,
    tau: float = 0.3,
    clusters: int = 2,
    iterations: int = 10,
    init: str = "random",
    metric: str = "l2",
) -> DeviceSelection:
    """The "keystone" rule without branches on data and without a transfer to the host.

    Makes the choice of ``keystone.select(candidates, "keystone", …)``. Use it inside a captured or compiled sampler; anywhere
    else `keystone.select` is faster and tells more. It cannot raise when no candidate of a round is finite: check
    ``any_valid`` before executing.

    Args:
        candidates: (K, T, D) or (B, K, T, D) tensor of any float dtype, on any device.

    >>> from keystone_robotics import select
    >>> chunks = torch.randn(2, 16, 50, 7, generator=torch.Generator().manual_seed(0))
    >>> chosen = torch.compile(select_on_device, fullgraph=True, backend="eager")(chunks)
    >>> chosen.index.tolist() == select(chunks).index.tolist()
    True
    """
    check_metric(metric)
    Keystone(tau, clusters, iterations, init)  # checks them
    if not candidates.is_floating_point():
        raise not_floating(candidates.dtype)
    check_shape(candidates.shape)
    batched = candidates.ndim == 4
    chunks = candidates if batched else candidates.unsqueeze(0)
    features = chunks.flatten(2)
    if space is not None:
        features = space.embed(chunks.to(working_dtype(chunks.device)))
        features = torch.where(usable_chunks(chunks).unsqueeze(2), features, torch.nan)
    # operator.index tells a compiler that these are no variables: it makes another graph for another number
    k, seed = operator.index(chunks.shape[1]), operator.index(check_seed(seed))
    clusters, iterations = min(operator.index(clusters), k), operator.index(iterations)
    order = _order_on(init, k, seed, chunks.device)
    named = "order" if INITS[init] == 0 else init
    outcome = branch_free.choose(features, order, metric, clusters, tau, iterations, named)
    index = outcome.chosen.clamp_min(0)
    chosen = chunks.gather(1, index.view(-1, 1, 1, 1).expand(-1, 1, *chunks.shape[2:])).squeeze(1)
    consensus = outcome.sizes[:, 0] / outcome.sizes.sum(1).clamp_min(1)
    result = DeviceSelection(index, chosen, outcome.clustered, consensus, outcome.spread, outcome.chosen >= 0)
    return result if batched else DeviceSelection(*(tensor[0] for tensor in result))


@constant_when_compiled
def _order_on(init: str, k: int, seed: int, device: torch.device) -> Tensor:
    return constant(tuple(starting_order(init, k, seed).tolist()), torch.int64, device)
