"""A tuning run from settings to a recommendation; after an interruption the same call resumes it.

Nothing is decided from what is not stored: latencies are measured once and written, the race replays its decisions from
stored episodes, and the confirmation has a fixed number of states, which come after those of the race and of earlier
confirmations.
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
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.executors import Executor
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.run import for_workers
from keystone_robotics.files import write_file
from keystone_robotics.policies.fingerprint import checkpoint_fingerprint
from keystone_robotics.records import EpisodeRecord
from keystone_robotics.spec import Spec
from keystone_robotics.tune.arm_table import arm_table, best_of, finalists, more_episodes, raced_episodes
from keystone_robotics.tune.config import TuneConfig
from keystone_robotics.tune.eligible_arms import all_arms, find_eligible_arms, find_latencies
from keystone_robotics.tune.folder import check_folder, fresh_states, write_settings
from keystone_robotics.tune.progress import TuneProgress
from keystone_robotics.tune.race import Race
from keystone_robotics.tune.result import CONFIRM_FOLDER, RACE_FOLDER, Tuned, write_result
from keystone_robotics.tune.rollouts import Rollouts
from keystone_robotics.tune.space import FREE, POLICY_AS_IT_IS, SEVERAL, groups_of, neighbours_of
from keystone_robotics.tune.verdict import ConfirmedArms, decide


def tune(config: TuneConfig, folder: Path, executor: Executor | None = None, console: Console | None = None) -> Tuned:
    """Find the specification that is best for a policy in an environment.

    Args:
        config: what to tune.
        folder: of the run; created if missing, resumed otherwise. ``race`` and ``confirm`` inside it are folders that
            `keystone compare` reads.
        executor: rolls out the episodes; default `InProcess`.
        console: for progress; None is silent.

    Raises:
        KeystoneError: if the budget is too small, the folder holds another run, or every episode ends with an error.
    """
    begin, executor, console = time.monotonic(), executor or InProcess(), console or Console(quiet=True)
    settings = replace(config.evaluation, arms=(POLICY_AS_IT_IS,), latency=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(executor)
        workers = for_workers(settings)
        executor.check(workers)
        arms = all_arms(config, executor, workers)
        fingerprint = checkpoint_fingerprint(settings.policy)  # of a policy of the hub it is known once it was loaded
        check_folder(folder, config, fingerprint)
        if config.budget < config.least_budget(arms[:2]):  # too small whichever arms the latency leaves
            config.check_budget(arms)
        latencies = find_latencies(folder, executor, workers, arms, console)
        eligible = find_eligible_arms(config, arms, latencies, functools.partial(_say, console))
        config.check_budget(eligible)
        write_settings(folder, config, fingerprint)
        progress = stack.enter_context(TuneProgress(console, config.budget))
        race = Race(groups_of(eligible), len(settings.tasks), config.race_budget, neighbours=neighbours_of(eligible))
        with Rollouts(folder / RACE_FOLDER, settings, executor, fingerprint, progress.add) as rollouts:
            _run(race, eligible, rollouts, progress)
            raced, new = raced_episodes(race, eligible, rollouts.everything()), rollouts.new
        confirmed = ConfirmedArms(
            best_of(race, eligible, FREE) or POLICY_AS_IT_IS,
            best_of(race, eligible, SEVERAL),
            {str(arm): latencies.step_ratio(arm) for arm in eligible},
            POLICY_AS_IT_IS in eligible,
        )
        states = config.confirm_states(len(confirmed.arms))
        first, earlier = fresh_states(folder, config, confirmed.arms, race.blocks, states)
        confirm = replace(settings, arms=confirmed.arms, first_episode=first, episodes=states)
        progress.standing("confirming " + " and ".join(str(arm) for arm in confirmed.arms[1:]))
        with Rollouts(folder / CONFIRM_FOLDER, settings, executor, fingerprint, progress.add) as rollouts:
            episodes = rollouts.episodes(confirmed.arms, first, states)
            new += rollouts.new
        write_file(folder / CONFIRM_FOLDER / "settings.json", json.dumps(confirm.as_dict(), indent=2) + "\n")
    verdict = decide(confirmed, [_outcomes(arm, episodes) for arm in confirmed.arms])
    notes = [note for note in (earlier, _repeated(raced, episodes)) if note]
    verdict = replace(verdict, notes=(*verdict.notes, *notes))
    open_questions = finalists(race, eligible, raced)
    if len(verdict.comparisons) > 2:  # K candidates against the best free change
        last = verdict.comparisons[-1]
        if last.outcome == "no clear difference":
            open_questions.append(f"the confirmation could not tell {last.b} from {last.a}: {more_episodes(last)}")
    tuned = Tuned(
        settings=config.as_dict(),
        used=race.used + len(episodes),
        race_states=race.blocks,
        confirm_first=first,
        confirm_states=states,
        arms=arm_table(config, arms, eligible, race, raced, latencies, confirmed),
        finalists=tuple(open_questions),
        verdict=verdict,
        new=new,
        seconds=time.monotonic() - begin,
    )
    write_result(folder, tuned)
    return tuned


def _run(race: Race, eligible: Sequence[Spec], rollouts: Rollouts, progress: TuneProgress) -> None:
    """Run the race to its end, and say after each batch who left it."""
    while batch := race.next_batch():
        before = race.running()
        progress.standing(_standing(race, eligible))
        race.add(rollouts.outcomes([eligible[number] for number in batch.arms], batch.first, batch.count))
        if problem := rollouts.only_errors():
            raise KeystoneError(
                f"every one of the {race.used} episodes so far ended with an error: the rest of the budget was not spent. The "
                f"last one: {problem}. Mend it and give another --out"
            )
        gone = [number for number in before if race.arms[number].status != "running"]
        if gone:
            progress.say(
                f"{race.used} episodes, {race.blocks * race.tasks} states: {len(gone)} eliminated, {_standing(race, eligible)}"
            )


def _standing(race: Race, eligible: Sequence[Spec]) -> str:
    """How many arms are left, and the leader of each group with its rate."""
    leaders = [race.leader(group) for group in sorted({one.group for one in race.arms})]
    rates = [
        f"{eligible[number]} {100 * one.successes / (one.blocks * race.tasks):.0f} %"
        for number in leaders
        if (one := race.arms[number]).blocks
    ]
    return f"{len(race.running())} arms left" + (f"; best: {', '.join(rates)}" if rates else "")


def _outcomes(arm: Spec, episodes: Sequence[EpisodeRecord]) -> Outcomes:
    return outcomes_of(str(arm), [one for one in episodes if one.arm == str(arm)], CONFIRM_FOLDER)


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
