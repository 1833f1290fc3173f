"""The paper's selector written down plainly in torch, batch by batch, as its listing describes it.

The yardstick of the benchmarks and nothing else: it uses ``torch.cdist`` as it comes, works on the flattened chunks
throughout, and loops over the batch and over clusters in Python.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kmeans(points: Tensor, starts: Tensor, iterations: int) -> Tensor:
    """(K, N) points to (K,) cluster numbers: assign, move the centroids, until no assignment changes."""
    centroids = points[starts]
    assignments = torch.full((points.shape[0],), -1)
    for _ in range(iterations):
        previous = assignments
        assignments = torch.cdist(points, centroids).argmin(dim=1)
        if bool((assignments == previous).all()):
            break
        moved = torch.zeros_like(centroids)
        for c in range(len(starts)):
            members = assignments == c
            moved[c] = points[members].mean(dim=0) if members.any() else centroids[c]
        centroids = moved
    return torch.cdist(points, centroids).argmin(dim=1)


def cluster_medoid_select(
    candidates: Tensor,
    clusters: int = 2,
    tau: float = 0.3,
    iterations: int = 10,
    seed: int = 0,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(B, K, T, D) candidates to ((B, T, D) chunks, (B,) indices).

    ``starts`` are the candidates that k-means begins with; by default they are drawn for each round.
    """
    batch, k = candidates.shape[:2]
    flat = candidates.reshape(batch, k, -1)
    distances = torch.cdist(flat, flat)
    medoid = distances.sum(dim=-1).argmin(dim=-1)
    rows = torch.arange(batch, device=candidates.device)
    gap = (flat.mean(dim=1) - flat[rows, medoid]).norm(dim=-1)
    i, j = torch.triu_indices(k, k, offset=1, device=candidates.device)
    median = distances[:, i, j].median(dim=-1).values
    spread = gap / (median + 1e-8)
    winners = medoid.clone()
    generator = torch.Generator().manual_seed(seed)
    for b in (spread >= tau).nonzero(as_tuple=True)[0].tolist():
        drawn = torch.randperm(k, generator=generator)[: min(clusters, k)] if starts is None else starts
        assignments = kmeans(flat[b], drawn, iterations)
        largest = int(torch.bincount(assignments, minlength=clusters).argmax())
        members = (assignments == largest).nonzero(as_tuple=True)[0]
        inner = distances[b].index_select(0, members).index_select(1, members)
        winners[b] = members[inner.sum(dim=-1).argmin()]
    return candidates[rows, winners], winners
