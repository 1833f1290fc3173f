"""`keystone.profile`: measure what K costs, here, with this policy."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from keystone_robotics.attachment import attach, attached, detach
from keystone_robotics.errors import KeystoneError
from keystone_robotics.files import atomic_write
from keystone_robotics.handle import Handle
from keystone_robotics.profiling.adaptive import measure_adaptive
from keystone_robotics.profiling.arguments import check_arguments, several
from keystone_robotics.profiling.fingerprint import describe_device, fingerprint_architecture, steps_of, versions
from keystone_robotics.profiling.measure import Schedule, Subject, measure
from keystone_robotics.profiling.memory import meter_for
from keystone_robotics.profiling.neighbours import NeighbourProcesses
from keystone_robotics.profiling.result import TOLERANCE, Profile, summarize
from keystone_robotics.profiling.store import ENOUGH, profiles_folder, save_profile
from keystone_robotics.profiling.subject import device_of, load_subject, round_of, rows_of
from keystone_robotics.sample.adaptive import refuse_adaptive_k
from keystone_robotics.sample.noise import preserve_rng
from keystone_robotics.sample.proxies import original_class
from keystone_robotics.sample.steps import check_steps
from keystone_robotics.select.agreement import AdaptiveRange
from keystone_robotics.spec import Spec

KS = (1, 4, 8, 16, 32)
ROUNDS = 30
RESULT = "profile.json"  #: in the folder of a profile
MIXED = (
    "The encoder runs inside this policy's sampler: the calls that its adapter names count as encoding, whatever else comes "
    "before the first step as denoising."
)


def profile(
    policy: Any,
    observation: Any = None,
    *,
    k: int | str | Iterable[int | str] = KS,
    steps: int | Iterable[int] = (),
    tolerance: float = TOLERANCE,
    budget_ms: float | None = None,
    batch: int | None = None,
    rounds: int = ROUNDS,
    device: str | None = None,
    concurrent: int = 1,
    trust_remote_code: bool = False,
    call: Callable[[Any], object] | None = None,
    out: str | os.PathLike[str] | None = None,
    profiles: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> Profile:
    """Latency and peak memory of a round at each K, and the largest K worth having.

    All K are measured in turn, round after round, after a warm-up; on a GPU by CUDA events. The policy is attached to for
    the time of the measurement, or used as it is if it is attached already: its listeners, counters and K are not touched.
    Its queues are reset.

    Args:
        policy: an object that `keystone.attach` takes, or a name: of one that comes with KeyStone, of a folder that
            ``keystone train`` or LeRobot wrote, LeRobot's on the hub, or ``package.module:function`` of a function that returns
            the policy, an observation and, if need be, how to call it; it is given ``device`` and ``batch`` where they are.
        observation: what the policy is called with, a whole batch if it takes one; not where the policy is given by name.
        k: numbers of candidates; 1 is always measured. Of a range, ``"4..16"``, both cases are: the first four agree, or not.
        steps: numbers of denoising steps, besides the policy's own, at each of which all K are measured.
        tolerance: how much longer than with K = 1 a round may take, as a fraction.
        budget_ms: how long a round may take; then the K within it is the best.
        batch: observations per round, for a policy given by name; default 1.
        rounds: measurements of each K.
        device: where a policy given by name runs; default what its checkpoint says.
        concurrent: clients that share the device: ``concurrent - 1`` other processes make rounds with the same K all the
            time. Measured in turn with one client alone. Needs a policy given by name.
        trust_remote_code: for a policy given by name: run code that a LeRobot checkpoint names but LeRobot did not install.
        call: how to call the policy; default ``policy.select_action(observation)``, else ``policy.infer(observation)``, else
            ``policy(observation)``.
        out: folder for profile.json.
        profiles: folder in which `keystone.attach(policy, k="auto")` finds the profile, unless it has fewer than five rounds
            or leaves K uncertain; default see `docs/profile.md`.
        progress: is called with the numbers of measurements done and planned.
        **options: of `keystone.attach`; not with other clients, which do not know them.

    >>> import tempfile, torch, keystone_robotics as keystone
    >>> class Policy(torch.nn.Module):
    ...     def forward(self, observation):
    ...         return self.sample(self.encode(observation), torch.randn(len(observation), 8, 2))
    ...     def encode(self, observation):
    ...         return observation
    ...     def sample(self, context, noise):
    ...         return context[:, None] + noise
    >>> found = keystone.profile(Policy(), torch.zeros(1, 2), k=[4], rounds=3, profiles=tempfile.mkdtemp())
    >>> [cost.k for cost in found.costs], found.best() in (1, 4)
    ([1, 4], True)
    """
    ks, spans = check_arguments(k, tolerance, budget_ms, rounds, concurrent, batch, steps)
    named = isinstance(policy, (str, os.PathLike))
    name = str(policy) if named else original_class(policy).__name__
    if concurrent > 1 and not named:
        raise KeystoneError(
            "concurrent: the other clients are processes, which must load the policy themselves: give its name or folder, "
            'keystone.profile("metaworld-mixed", concurrent=2)'
        )
    numbers = several(steps)
    if concurrent > 1 and (options or numbers):
        given = ", ".join(sorted([*options, *(["steps"] if numbers else [])]))
        raise KeystoneError(
            f"concurrent: the other clients attach with default options, and {given} would hold for one "
            "of them only: leave it out, or measure with concurrent=1"
        )
    if named:
        if observation is not None or call is not None:
            raise KeystoneError("a policy given by name comes with its observation: leave out observation and call")
        policy, observation, call = load_subject(name, device, batch, trust_remote_code)
    elif observation is None:
        raise KeystoneError("observation: give what the policy is called with, keystone.profile(policy, observation)")
    elif batch is not None or device is not None:
        raise KeystoneError("batch and device are for a policy given by name; here the observation and the policy say")
    with contextlib.ExitStack() as stack:
        handle = stack.enter_context(_attached(policy, options))
        place, rows = device_of(handle, observation), rows_of(handle, observation)
        for number in numbers:
            check_steps(handle.engine.adapter, handle.engine.owner, number)
        own = steps_of(handle)
        clients = (1, concurrent) if concurrent > 1 else (1,)
        schedule = Schedule(ks, rounds, clients, (None, *sorted({number for number in numbers if number != own})))
        fingerprints = {one: fingerprint_architecture(handle, place, rows, one) for one in schedule.steps}
        if out is not None:
            _make_folder(Path(out))
        neighbours = None
        if concurrent > 1:
            threads = torch.get_num_threads()
            others = NeighbourProcesses(concurrent - 1, name, device, batch, threads, trust_remote_code)
            neighbours = stack.enter_context(others)
        stack.enter_context(preserve_rng(place))  # the caller's random numbers stay what they would have been
        subject = Subject(handle, *round_of(policy, observation, call), place)
        if spans:
            refuse_adaptive_k(handle.engine.adapter)
        measured = measure(subject, schedule, neighbours, progress)
        adaptive = tuple(measure_adaptive(subject, span, rounds) for span in spans)
    found = Profile(
        policy=name,
        adapter=handle.adapter,
        batch=rows,
        device=describe_device(place, handle),
        versions=versions(handle),
        fingerprint=fingerprints[None],
        costs=summarize(measured.times, measured.peaks),
        memory=meter_for(place).title,
        tolerance=tolerance,
        budget_ms=budget_ms,
        stopped=measured.stopped,
        note=MIXED if measured.mixed else "",
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        path=measured.path,
        steps=own,
        adaptive=adaptive,
    )
    if not not_stored(found, rounds):
        # For k="auto" with each number of steps, compared with K = 1 there.
        left_open = []
        for one, fingerprint in fingerprints.items():
            costs = summarize(*measured.at_steps(one))
            alone = dataclasses.replace(found, fingerprint=fingerprint, costs=costs, steps=one or own)
            if not alone.uncertain():
                save_profile(alone, profiles_folder(profiles))
            elif one is not None:
                left_open.append(one)
        found = dataclasses.replace(found, left_open=tuple(left_open))
    if out is not None:
        with atomic_write(Path(out) / RESULT) as draft:
            draft.write_text(json.dumps(found.as_dict(), indent=2) + "\n")
    return found


def not_stored(found: Profile, rounds: int) -> str:
    """Why a profile must not decide about K for good, so that it is not stored for ``k="auto"``; empty if it may."""
    if found.doubt:
        return "the measurement is implausible (see above)"
    if rounds < ENOUGH:
        return f"{rounds} rounds of each K, {ENOUGH} are needed"
    if found.uncertain():
        return f"K is not certain after {rounds} rounds (see above): measure more rounds, or fewer K"
    return ""


def _make_folder(folder: Path) -> None:
    """Before anything is measured: afterwards would be too late."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KeystoneError(f"cannot write to {folder}: {error.strerror}") from None


@contextlib.contextmanager
def _attached(policy: Any, options: dict[str, Any]) -> Any:
    """The handle of a policy, attached for the time of this block if it is not already."""
    there: Handle | None = attached(policy)
    if there is not None:
        if options:
            raise KeystoneError(
                f"this policy is attached already, and {', '.join(options)} cannot be changed: detach first"
            )
        yield there
        return
    if AdaptiveRange.parse(options.get("execute")) is not None:  # says nothing about the cost of a round
        options = {**options, "execute": Spec.of(execute=options["execute"]).most_steps}
    handle = attach(policy, k=1, **options)
    try:
        yield handle
    finally:
        detach(policy)
