"""A tuning run from settings to a recommendation; after an interruption the same call resumes it.

Nothing is decided from what is not stored: latencies are measured once and written, the race replays its decisions from
stored episodes, and the confirmation has a fixed number of states, those that come after the states of the race.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import scipy.stats  # noqa: F401  (the statistics at the end need it: fail before the first episode)
from rich.console import Console

from keystone_robotics.compare.outcomes import Outcomes
from keystone_robotics.compare.read_run import outcomes_of
from keystone_robotics.evaluate.config import EvaluationConfig
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.run import for_workers
from keystone_robotics.files import write_file
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec
from keystone_robotics.tune.account import arm_table, best_of, finalists, more_episodes, raced_episodes
from keystone_robotics.tune.config import TuneConfig
from keystone_robotics.tune.entrants import all_arms, find_entrants, find_latencies
from keystone_robotics.tune.latency import Latencies
from keystone_robotics.tune.progress import TuneProgress
from keystone_robotics.tune.race import Race
from keystone_robotics.tune.result import CONFIRM, RACE, Tuned, write_result
from keystone_robotics.tune.rollouts import Rollouts
from keystone_robotics.tune.space import FREE, POLICY_AS_IT_IS, SEVERAL, groups_of, neighbours_of
from keystone_robotics.tune.verdict import Chosen, decide


def tune(config: TuneConfig, folder: Path, executor: Executor | None = None, console: Console | None = None) -> Tuned:
    """Find the specification that is best for a policy in an environment.

    Args:
        config: what to tune.
        folder: of the run; created if missing, resumed otherwise. ``race`` and ``confirm`` inside it are folders that
            `keystone compare` reads.
        executor: rolls out the episodes; default `InProcess`.
        console: for progress; None is silent.
    """
    begin, executor, console = time.monotonic(), executor or InProcess(), console or Console(quiet=True)
    settings = replace(config.evaluation, arms=(POLICY_AS_IT_IS,), latency=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(executor)
        # If others roll out, the policy of this process must not take the memory of theirs: it is released after this block.
        with executor if isinstance(executor, InProcess) else InProcess() as here:
            arms, latencies = _arms_and_latencies(here, config, settings, folder, console)
        entrants = find_entrants(config, arms, latencies, functools.partial(_say, console))
        config.check_budget(entrants)
        fingerprint = checkpoint_fingerprint(settings.policy)
        progress = stack.enter_context(TuneProgress(console, config.budget))
        race = Race(groups_of(entrants), len(settings.tasks), config.race_budget, neighbours=neighbours_of(entrants))
        with Rollouts(folder / RACE, settings, executor, fingerprint, progress.add) as rollouts:
            _run(race, entrants, rollouts, progress)
            raced, new = raced_episodes(race, entrants, rollouts.everything()), rollouts.new
        control, candidate = best_of(race, entrants, FREE), best_of(race, entrants, SEVERAL)
        own = latencies.of(POLICY_AS_IT_IS)
        chosen = Chosen(
            control or POLICY_AS_IT_IS,
            candidate,
            {str(arm): latencies.of(arm) / own for arm in entrants},
            POLICY_AS_IT_IS in entrants,
        )
        states = config.confirm_states(len(chosen.arms))
        confirm = replace(settings, arms=chosen.arms, first_episode=race.blocks, episodes=states)
        progress.standing("confirming " + " and ".join(str(arm) for arm in chosen.arms[1:]))
        with Rollouts(folder / CONFIRM, settings, executor, fingerprint, progress.add) as rollouts:
            episodes = rollouts.episodes(chosen.arms, race.blocks, states)
            new += rollouts.new
        write_file(folder / CONFIRM / "settings.json", json.dumps(confirm.as_dict(), indent=2) + "\n")
    verdict = decide(chosen, [_outcomes(arm, episodes) for arm in chosen.arms])
    if repeated := _repeated(raced, episodes):
        verdict = replace(verdict, notes=(*verdict.notes, repeated))
    open_questions = finalists(race, entrants, raced)
    if len(verdict.comparisons) > 2:  # K candidates against the best free change
        last = verdict.comparisons[-1]
        if not (last.improvement or last.regression):
            open_questions.append(f"the confirmation could not tell {last.b} from {last.a}: {more_episodes(last)}")
    tuned = Tuned(
        settings=config.as_dict(),
        used=race.used + len(episodes),
        race_states=race.blocks,
        confirm_states=states,
        arms=arm_table(config, arms, entrants, race, raced, latencies, chosen),
        finalists=tuple(open_questions),
        verdict=verdict,
        new=new,
        seconds=time.monotonic() - begin,
    )
    write_result(folder, tuned)
    return tuned


def _arms_and_latencies(
    here: InProcess, config: TuneConfig, settings: EvaluationConfig, folder: Path, console: Console
) -> tuple[list[Spec], Latencies]:
    """What can be tried with the policy, and how long a round of each takes in this process."""
    settings = for_workers(settings)
    here.check(settings)
    worker = here.worker(settings)
    arms = all_arms(config, worker)
    return arms, find_latencies(folder, worker, arms, console)


def _run(race: Race, entrants: Sequence[Spec], rollouts: Rollouts, progress: TuneProgress) -> None:
    """Run the race to its end, and say after each batch who left it."""
    while batch := race.next_batch():
        before = race.running()
        progress.standing(_standing(race, entrants))
        race.add(rollouts.outcomes([entrants[number] for number in batch.arms], batch.first, batch.count))
        gone = [number for number in before if race.arms[number].fate != "running"]
        if gone:
            progress.say(
                f"{race.used} episodes, {race.blocks * race.tasks} states: {len(gone)} eliminated, {_standing(race, entrants)}"
            )


def _standing(race: Race, entrants: Sequence[Spec]) -> str:
    """How many arms are left, and the leader of each group with its rate."""
    leaders = [race.leader(group) for group in sorted({one.group for one in race.arms})]
    rates = [
        f"{entrants[number]} {100 * one.successes / (one.blocks * race.tasks):.0f} %"
        for number in leaders
        if (one := race.arms[number]).blocks
    ]
    return f"{len(race.running())} arms left" + (f"; best: {', '.join(rates)}" if rates else "")


def _outcomes(arm: Spec, episodes: Sequence[EpisodeRecord]) -> Outcomes:
    return outcomes_of(str(arm), [one for one in episodes if one.arm == str(arm)], CONFIRM)


def _repeated(raced: Sequence[EpisodeRecord], confirmed: Sequence[EpisodeRecord]) -> str:
    """A warning if an environment gives the same initial states again under other numbers."""
    seen = {(one.task, one.initial_state) for one in raced if one.initial_state}
    states = {(one.task, one.initial_state) for one in confirmed if one.initial_state}
    if not seen & states:
        return ""
    return (
        f"{len(seen & states)} of the {len(states)} initial states of the confirmation were also in the race: this environment "
        "has no more, so the choice is confirmed with fresh noise alone there"
    )


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
