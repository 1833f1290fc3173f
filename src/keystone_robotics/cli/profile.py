"""The command `keystone profile`: measure the cost of K with a policy on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from keystone_robotics.cli.flags import given, spec_flags
from keystone_robotics.errors import KeystoneError
from keystone_robotics.spec import RECOMMENDED_RULE, flag_of, merge, options_from_environment, spec_from

if TYPE_CHECKING:
    from keystone_robotics.profiling import Profile

SpecFlags = spec_flags("k", "steps")


def run(
    policy: Annotated[str, tyro.conf.Positional],
    spec: tyro.conf.OmitArgPrefixes[SpecFlags],  # type: ignore[valid-type]
    k: Annotated[tuple[str, ...], tyro.conf.arg(aliases=["-k"])] = ("1", "4", "8", "16", "32"),
    steps: tuple[int, ...] = (),
    tolerance: float = 0.05,
    budget_ms: float | None = None,
    batch: int | None = None,
    rounds: int = 30,
    device: str | None = None,
    concurrent: int = 1,
    trust_remote_code: bool = False,
    out: Path | None = None,
) -> None:
    """Measure latency and memory of a round against K (and denoising steps), and find the largest K worth having.

    All K are measured in turn in every round, after a warm-up. With five rounds or more the result is also stored where
    `keystone.attach(policy, k="auto")` finds it, unless they leave K uncertain.

    Args:
        policy: a policy of keystone-study, a folder written by `keystone train` or LeRobot, a LeRobot name on the hub, or
            package.module:function of a function that returns a policy and an observation (docs/profile.md).
        spec: how candidates are drawn and one is selected; K is given by -k, steps by --steps. Flags override KEYSTONE_*
            environment variables.
        k: candidates per round; 1 is always measured. Of a range such as 4..16, both cases are: the first four agree, or not.
        steps: numbers of denoising steps to measure beside the policy's own; the cells (K, steps) that take no longer than the
            policy as it is are printed.
        tolerance: how much longer than with K = 1 a round may take, as a fraction.
        budget_ms: limit on the 90th percentile of a round's latency; replaces the tolerance.
        batch: observations per round; default 1, or the number that the function returns.
        rounds: measurements per K.
        device: where to run; default the checkpoint's.
        concurrent: clients that share the device; the others are processes that run rounds with the same K continuously.
        trust_remote_code: run code that a LeRobot checkpoint names but LeRobot did not install (docs/security.md).
        out: folder for the table, profile.json and the figure; default out/profile/ and the policy's name, with the
            options, batch and number of clients if given.
    """
    flags = merge(given(spec))
    for axis in ("k", "steps"):
        if axis in flags:
            raise KeystoneError(
                f"--spec with {axis}={flags[axis]}: that is what is measured, give the numbers with --{axis}"
            )
    attached = merge(flags, options_from_environment())
    attached.pop("k", None)
    steps = (wanted,) if (wanted := attached.pop("steps", None)) and not steps else steps
    name = str(spec_from(attached)) if attached else ""
    _check(policy, k, tolerance, budget_ms, rounds, concurrent, batch, steps)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from keystone_robotics.profiling.api import RESULT, not_stored, profile
    from keystone_robotics.profiling.store import profiles_folder
    from keystone_robotics.report.cost import draw_cost
    from keystone_robotics.report.style import save

    folder = out or Path("out/profile") / _folder_name(policy, batch, concurrent, name)
    if any((folder / f"profile.{kind}").exists() for kind in ("md", "png", "svg")) and not (folder / RESULT).exists():
        raise KeystoneError(
            f"{folder} has a file named profile that is not of this command: choose another folder with --out"
        )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    columns = (TextColumn("profiling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def redraw(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total, refresh=True)

    try:
        # redrawn between measurements only: a refresh thread would disturb the timing
        screen = Console(stderr=True)
        with Progress(
            *columns, console=screen, auto_refresh=False, transient=True, disable=not screen.is_terminal
        ) as bar:
            task = bar.add_task("", total=None)
            found = profile(
                policy, k=k, steps=steps, tolerance=tolerance, budget_ms=budget_ms, batch=batch, rounds=rounds, device=device,
                concurrent=concurrent, trust_remote_code=trust_remote_code, out=folder, progress=redraw, **attached,
            )  # fmt: skip
    except KeyboardInterrupt:
        console.print("stopped: nothing was stored", style="bold yellow")
        raise SystemExit(130) from None
    console.print(str(found))
    console.print(advice(found), style="bold green")
    (folder / "profile.md").write_text(str(found) + "\n")
    paths = save(draw_cost(found), folder, "profile")
    console.print(f"wrote {', '.join(path.name for path in paths)}, profile.md and profile.json to {folder}")
    if reason := not_stored(found, rounds):
        console.print(f'not stored for k="auto": {reason}', style="bold yellow")
    else:
        console.print(f'stored for k="auto", which gives K = {found.best()} from now on, in {profiles_folder()}')
    for number in found.left_open:
        console.print(f'not stored for k="auto" with steps={number}: K is not certain there', style="bold yellow")


def _check(policy: str, k: tuple[str, ...], *others: Any) -> None:
    """What is wrong is said before torch is imported, with the flag's name."""
    from keystone_robotics.policies.load import check_names
    from keystone_robotics.profiling.arguments import check_arguments

    try:
        check_arguments(k, *others, named=flag_of)
    except (ValueError, TypeError) as error:
        raise KeystoneError(str(error)) from None
    check_names(policy)


def _folder_name(policy: str, batch: int | None, clients: int, spec: str = "") -> str:
    """The name of a profile's folder.

    >>> _folder_name("lerobot/pi05_base", None, 1), _folder_name("./mine", 2, 3, "first:fast=false")
    ('lerobot-pi05_base', 'mine-first-fast-false-batch-2-clients-3')
    """
    name = re.sub(r"[^\w.-]+", "-", f"{policy} {spec}").strip("-.") or "policy"
    return name + (f"-batch-{batch}" if batch else "") + (f"-clients-{clients}" if clients > 1 else "")


def advice(found: Profile) -> str:
    """A recommendation, in one line."""
    if found.doubt:
        return "no K can be recommended from this measurement"
    k, load = found.best(), f" with {found.clients[-1]} clients" if len(found.clients) > 1 else ""
    if k > 1:
        return f'K = {k}{load}: keystone.attach(policy, k={k}), or k="auto"'
    fewer = max((cost for cost in found.no_slower() if cost.steps), key=lambda cost: (cost.k, cost.steps), default=None)
    if found.budget_ms is None and fewer is not None and fewer.k > 1:
        return (
            f"K = {fewer.k} with {fewer.steps} steps takes no longer than the policy as it is: "
            f'keystone.attach(policy, "{RECOMMENDED_RULE}:k={fewer.k},steps={fewer.steps}")'
        )
    if found.budget_ms is not None and found.within_budget() is None:
        alone = found.of(found.clients[-1])[0].p90
        return f"K = 1: the policy by itself takes {alone:.3g} ms or more in one round of ten, beyond the budget"
    if found.budget_ms is not None:
        return "K = 1: no larger K that was tried stays within the budget"
    return "K = 1: no larger K that was tried is within the tolerance; if a round may take longer, set --budget-ms"
