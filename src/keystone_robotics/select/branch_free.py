"""The same decisions as the compiled kernel (see ``kernel.py``), batched in torch on any device.

There is no branch on data and no transfer to the host, so the whole function can be captured in a CUDA graph or compiled
with ``fullgraph=True``. Comparisons are made after rounding to float32, as in the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from keystone_robotics.select.metrics import ROUNDING, pairwise, usable, working_dtype

EPSILON = 1e-8


class TensorOutcome(NamedTuple):
    """What was decided for B rounds of K candidates; C is the number of clusters asked for."""

    chosen: Tensor  #: (B,) int64, -1 where no candidate is valid
    clustered: Tensor  #: (B,) bool
    labels: Tensor  #: (B, K) int64: cluster, 0 the winner, -1 dropped
    sizes: Tensor  #: (B, C) int64, largest first
    spread: Tensor  #: (B,)
    median: Tensor  #: (B,)


def choose(
    features: Tensor, order: Tensor, metric: str, clusters: int, tau: float, iterations: int, init: str
) -> TensorOutcome:
    """Select in every round. Arguments as in ``kernel.choose``, but ``metric`` and ``init`` by name."""
    x = features.to(working_dtype(features.device))
    k = x.shape[1]
    valid = usable(x)
    n = valid.sum(1)
    x = torch.where(valid.unsqueeze(2), x, torch.nan)
    both = valid.unsqueeze(1) & valid.unsqueeze(2)
    distances, squared = (torch.where(both, matrix, 0.0) for matrix in pairwise(x, metric))
    winner = _medoid(distances, valid)
    median = torch.where(n > 1, _lower_median(distances, both, n), 0.0)
    spread = torch.where(n > 1, _gap(x, squared, n, winner, metric) / (median + EPSILON), 0.0)
    labels = valid.long() - 1
    most = min(clusters, k)
    sizes = torch.nn.functional.pad(n.unsqueeze(1), (0, clusters - 1))
    use = (spread >= tau) & (n > 1) & (most > 1)
    if most > 1:
        ranked, counts = _rank(distances, valid, _cluster(squared, valid, order, most, iterations, init), most)
        labels = torch.where(use.unsqueeze(1), ranked, labels)
        sizes = torch.where(use.unsqueeze(1), torch.nn.functional.pad(counts, (0, clusters - most)), sizes)
        winner = torch.where(use, _medoid(distances, ranked == 0), winner)
    return TensorOutcome(torch.where(n > 0, winner, -1), use, labels, sizes, spread, median)


def _lowest(values: Tensor, axis: int) -> Tensor:
    return values.float().argmin(axis)


def _medoid(distances: Tensor, members: Tensor) -> Tensor:
    """(B,) the member with the smallest sum of distances to the members."""
    totals = torch.bmm(distances, members.to(distances.dtype).unsqueeze(2)).squeeze(2)
    return _lowest(torch.where(members, totals, torch.inf), 1)


def _lower_median(distances: Tensor, both: Tensor, n: Tensor) -> Tensor:
    """Sorted, the n zeros of the diagonal come first, then every distance twice, then what is not valid."""
    ordered = torch.where(both, distances, torch.inf).flatten(1).sort(1).values
    middle = n + 2 * (((n * (n - 1)) // 2 - 1).clamp_min(0) // 2)
    return ordered.gather(1, middle.clamp_max(ordered.shape[1] - 1).unsqueeze(1)).squeeze(1)


def _gap(x: Tensor, squared: Tensor, n: Tensor, medoid: Tensor, metric: str) -> Tensor:
    """Distance of the mean to the medoid, in the metric."""
    n = n.clamp_min(1)
    if metric != "cosine":
        chosen = x.gather(1, medoid.view(-1, 1, 1).expand(-1, 1, x.shape[2]))
        apart = (x - chosen).nansum(1) / n.unsqueeze(1)  # what is not valid is NaN
        return apart.abs().sum(1) if metric == "l1" else apart.square().sum(1).sqrt()
    sums = squared.sum(2)
    to_medoid = sums.gather(1, medoid.unsqueeze(1)).squeeze(1) / n
    total = sums.sum(1) / (2.0 * n * n)
    near = to_medoid / 2
    grow = torch.expm1(-0.5 * torch.log1p(-total.clamp_max(1 - 1e-12)))
    return (near - grow + near * grow).clamp_min(0)


def _cluster(squared: Tensor, valid: Tensor, order: Tensor, clusters: int, iterations: int, init: str) -> Tensor:
    """(B, K) cluster of each candidate. Fewer valid candidates than clusters leave the last clusters empty."""
    batch, k, _ = squared.shape
    seeds = _seeds(squared, valid, order, clusters, init)  # (B, R, C): R starts
    starts = seeds.shape[1]
    squared, valid = (tensor.repeat_interleave(starts, 0) for tensor in (squared, valid))
    labels, inertia = _kmeans(squared, valid, seeds.flatten(0, 1), iterations)
    inertia = inertia.view(batch, starts)
    if starts > 1:  # the starts are the candidates themselves
        inertia = torch.where(valid.view(batch, starts, k)[:, 0], inertia, torch.inf)
    best = _lowest(inertia, 1).view(batch, 1, 1).expand(batch, 1, k)
    return labels.view(batch, starts, k).gather(1, best).squeeze(1)


def _seeds(squared: Tensor, valid: Tensor, order: Tensor, clusters: int, init: str) -> Tensor:
    """(B, R, C) the candidates at which the clusters of each of R starts begin; -1 for a cluster that cannot begin."""
    batch, k, _ = squared.shape
    if init == "order":  # a stable sort brings the valid candidates of the order to its front
        front = torch.argsort((~valid[:, order]).long(), dim=1, stable=True)[:, :clusters]
        chosen = order[front].unsqueeze(1)
    else:
        reach = torch.where(valid.unsqueeze(1) & valid.unsqueeze(2), squared, -1.0)
        if init == "farthest":
            upper = torch.ones(k, k, dtype=torch.bool, device=squared.device).triu(1)
            pair = _lowest(torch.where(upper, -reach, torch.inf).flatten(1), 1).unsqueeze(1)
            seeds = [pair // k, pair % k]
        else:
            seeds = [torch.arange(k, device=squared.device).expand(batch, k)]
        rows = [reach.gather(1, seed.unsqueeze(2).expand(-1, -1, k)) for seed in seeds]
        nearest = torch.stack(rows).amin(0)
        while len(seeds) < clusters:
            seeds.append(_lowest(-nearest, 2))
            nearest = torch.minimum(nearest, reach.gather(1, seeds[-1].unsqueeze(2).expand(-1, -1, k)))
        chosen = torch.stack(seeds, 2)
    possible = torch.arange(clusters, device=squared.device) < valid.sum(1)[:, None, None]
    return torch.where(possible, chosen, -1)


def _kmeans(squared: Tensor, valid: Tensor, seeds: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Lloyd's algorithm on the K x K algebra: (B, K) labels and (B,) inertia."""
    k, clusters = squared.shape[1], seeds.shape[1]
    numbers = torch.arange(clusters, device=squared.device).view(1, clusters, 1)
    sums = squared.gather(1, seeds.clamp_min(0).unsqueeze(2).expand(-1, -1, k))
    sums = torch.where((seeds >= 0).unsqueeze(2), sums, torch.inf)
    within, counts = torch.zeros_like(sums[:, :, :1]), torch.ones_like(sums[:, :, :1])
    labels, size, inner = numbers[:, 0], counts, within
    for _ in range(iterations):
        means = sums / counts
        score = means - within / (2.0 * counts * counts)
        labels = _lowest(torch.where(score < ROUNDING * means, 0.0, score), 1)  # 0: on the centroid
        member = ((labels.unsqueeze(1) == numbers) & valid.unsqueeze(1)).to(squared.dtype)
        size = member.sum(2, keepdim=True)
        row = torch.bmm(member, squared)
        inner = (row * member).sum(2, keepdim=True)
        # an empty cluster keeps its centroid
        sums, counts, within = (
            torch.where(size > 0, new, old) for new, old in ((row, sums), (size, counts), (inner, within))
        )
    return labels, (inner / (2.0 * size.clamp_min(1))).sum((1, 2))


def _rank(distances: Tensor, valid: Tensor, labels: Tensor, clusters: int) -> tuple[Tensor, Tensor]:
    """Relabel so that 0 is the winner: most members, then smallest inner distances, then lowest first member.

    Returns (B, K) new labels, -1 for what is not valid, and (B, C) sizes in their order.
    """
    k = labels.shape[1]
    numbers = torch.arange(clusters, device=labels.device)
    member = (labels.unsqueeze(1) == numbers.view(1, -1, 1)) & valid.unsqueeze(1)
    weight = member.to(distances.dtype)
    size = member.sum(2)
    inner = (torch.bmm(weight, distances) * weight).sum(2).float()
    first = torch.where(member, torch.arange(k, device=labels.device), k).amin(2)
    beaten = numbers.unsqueeze(0) < numbers.unsqueeze(1)  # the last resort: two empty clusters
    for key in (first, inner, -size):
        other, own = key.unsqueeze(1), key.unsqueeze(2)
        beaten = (other < own) | ((other == own) & beaten)
    rank = beaten.sum(2)
    return torch.where(valid, rank.gather(1, labels), -1), size.gather(1, rank.argsort(1))
