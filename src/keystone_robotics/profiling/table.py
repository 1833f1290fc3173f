"""A profile as text: a Markdown table and conclusions."""

from __future__ import annotations

from collections.abc import Sequence

from keystone_robotics.profiling.result import Cost, Profile
from keystone_robotics.tables import as_markdown

HEADER = (
    "K",
    "median ms",
    "p90",
    "p99",
    "to K = 1",
    "encode",
    "denoise",
    "select",
    "other",
    "peak MiB",
    "round MiB",
)


def lines(profile: Profile) -> list[str]:
    """The whole report, line by line."""
    versions = ", ".join(f"{name} {version}" for name, version in profile.versions.items())
    rows = "unknown batch" if profile.batch is None else f"batch {profile.batch}"
    count = min(cost.rounds for cost in profile.costs)
    sampled = f"{profile.policy} ({profile.adapter}, {profile.path} path), {rows}, {profile.device}"
    text = [f"{sampled}; {versions}; {count} rounds of each K, {profile.date}", ""]
    for clients in profile.clients:
        if len(profile.clients) > 1:
            text += [f"{_clients(clients)}:", ""]
        costs = [cost for cost in profile.costs if cost.clients == clients]
        text += [
            *as_markdown(_with_steps(profile, [HEADER, *(_cells(cost) for cost in costs)], costs)).splitlines(),
            "",
        ]
    text += [f"Memory: {profile.memory}.", *([profile.note] if profile.note else [])]
    return [*text, *conclusions(profile), *map(str, profile.adaptive)]


def _with_steps(profile: Profile, rows: Sequence[Sequence[str]], costs: Sequence[Cost]) -> list[list[str]]:
    """The rows with a column for the number of steps, and one for what is no slower, if several numbers were measured."""
    if len(profile.numbers_of_steps) == 1:
        return [list(row) for row in rows]
    clients = costs[0].clients
    free, unsure = profile.no_slower(clients), profile.maybe_slower(clients)
    header = ["ratio" if title == "to K = 1" else title for title in rows[0]]
    steps = ["steps", *(_steps(profile, cost) for cost in costs)]
    marks = ["no slower", *("not certain" if cost in unsure else "yes" if cost in free else "no" for cost in costs)]
    return [[row[0], count, *row[1:], mark] for row, count, mark in zip([header, *rows[1:]], steps, marks, strict=True)]


def _steps(profile: Profile, cost: Cost) -> str:
    return str(cost.steps or profile.steps or "own")


def _no_slower(profile: Profile, clients: int, who: str) -> str:
    """The K of each number of steps that cost no more than the policy as it is."""
    free, unsure = profile.no_slower(clients), profile.maybe_slower(clients)
    found = []
    for steps in profile.numbers_of_steps:
        ks = [f"{cost.k}?" if cost in unsure else str(cost.k) for cost in free if cost.steps == steps]
        count = steps or profile.steps or "own"
        found += [f"{count} {'step' if count == 1 else 'steps'}: K = {', '.join(ks)}"] if ks else []
    own = f"K = 1, {_steps(profile, profile.of(clients)[0])} steps"
    text = f"Within {profile.tolerance:.0%} of the policy as it is ({own}){who}: {'; '.join(found)}"
    return f"{text} (?: not certain, more rounds would tell)" if set(free) & set(unsure) else text


def conclusions(profile: Profile) -> list[str]:
    """Which K, and why."""
    text = []
    if profile.doubt:
        text.append(profile.doubt)
    if profile.stopped is not None:
        fits = max(cost.k for cost in profile.costs)
        text.append(f"K = {profile.stopped} does not fit into memory; the largest K tried that does is {fits}.")
    for clients in profile.clients:
        who = "" if len(profile.clients) == 1 else f", {_clients(clients)}"
        text.append(f"Largest K within {profile.tolerance:.0%} of K = 1{who}: {profile.within_tolerance(clients)}")
        if profile.budget_ms is not None:
            k = profile.within_budget(clients)
            found = "none, not even K = 1" if k is None else str(k)
            text.append(f"Largest K within {profile.budget_ms:g} ms in nine rounds of ten{who}: {found}")
        text += [_uncertain(profile, clients, who)] if profile.uncertain(clients) else []
        text += [_no_slower(profile, clients, who)] if len(profile.numbers_of_steps) > 1 else []
    if len(profile.clients) > 1:
        alone, shared = profile.clients[0], profile.clients[-1]
        before, after = profile.best(alone), profile.best(shared)
        how = "shrinks from" if after < before else "stays at" if after == before else "grows from"
        change = f"{how} {before}" if after == before else f"{how} {before} to {after}"
        slower = profile.of(shared)[0].median / profile.of(alone)[0].median
        text.append(f"With {_clients(shared)} K {change}; K = 1 itself takes {slower:.2f} times as long.")
    return text


def _uncertain(profile: Profile, clients: int, who: str) -> str:
    """The K that may be on either side of the limit."""
    unsure = [cost for cost in profile.of(clients) if cost.k in profile.uncertain(clients)]
    count = min(cost.rounds for cost in unsure)
    if profile.budget_ms is None:
        what, ranges = "ratio", [_range(cost.ratio_low, cost.ratio_high, "×") for cost in unsure]
    else:
        what, ranges = "90th percentile", [_range(cost.p90_low, cost.p90_high, " ms") for cost in unsure]
    named = ", ".join(f"K = {cost.k} ({what} {limits})" for cost, limits in zip(unsure, ranges, strict=True))
    return f"Not certain after {count} rounds{who}: {named}; more rounds would tell."


def _range(low: float | None, high: float | None, unit: str) -> str:
    if low is None:
        return "of unknown range" if high is None else f"up to {high:.3g}{unit}"
    return f"{low:.3g}{unit} or more" if high is None else f"{low:.3g} to {high:.3g}{unit}"


def _clients(count: int) -> str:
    return "one client alone" if count == 1 else f"{count} clients on the device"


def _cells(cost: Cost) -> list[str]:
    times = (cost.median, cost.p90, cost.p99)
    phases = (cost.encode, cost.denoise, cost.select, cost.other)
    memory = ("–" if value is None else f"{value:.0f}" for value in (cost.peak, cost.extra))
    ratio = f"{cost.ratio:.2f}×"
    if (cost.k > 1 or cost.steps is not None) and cost.ratio_low is not None and cost.ratio_high is not None:
        ratio += f" ({cost.ratio_low:.2f} to {cost.ratio_high:.2f})"
    return [str(cost.k), *(f"{value:.3g}" for value in times), ratio, *(f"{value:.3g}" for value in phases), *memory]
