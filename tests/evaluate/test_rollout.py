"""Episodes in lockstep: what one does wrong is its own affair, and nothing that is not a number is executed."""

import logging
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate import worker as worker_module
from keystone_robotics.evaluate.config import Shard
from keystone_robotics.evaluate.executors.cluster import RayCluster
from keystone_robotics.evaluate.executors.in_process import InProcess
from keystone_robotics.evaluate.rollout import hash_state
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.evaluate.worker import Worker, checked_worker
from keystone_robotics.policies import load_agent
from keystone_robotics.records import Store
from keystone_robotics.sample.engine import Engine
from keystone_robotics.spec import Spec
from keystone_study.policies.flow import FlowPolicy
from keystone_study.policies.flow_agent import FlowAgent
from toy import PointEnv, save_random_flow, table


def run_arm(settings, arm, count=4):
    return Worker(settings).run(Shard(Spec.parse(arm), settings.tasks[0], 0, 0, count)).episodes


def without_latency(episodes):
    return [(one.episode, one.initial_state, one.success, one.steps, one.rounds, one.consensus) for one in episodes]


@pytest.mark.parametrize(
    ("task", "says", "steps", "arm"),
    [
        ("step-fails", "RuntimeError: the gripper is stuck", 2, "keystone:k=4"),
        ("reset-fails", "RuntimeError: the table is gone", 0, "first"),
        ("nan", "NoValidCandidate", 3, "keystone:k=4"),
        ("nan", "NoValidCandidate", 3, "coherent:k=4"),
    ],
)
def test_an_error_ends_one_episode(toy, monkeypatch, task, says, steps, arm):
    results = run_arm(toy(task), arm)
    wrong = results[1]
    assert says in wrong.error
    assert "Traceback (most recent call last)" in wrong.error
    assert (wrong.success, wrong.steps) == (False, steps)
    assert (wrong.latency_ms is None) == (task == "reset-fails")
    fine = [one for one in results if one.episode != 1]
    assert all(one.error is None and one.steps > 0 for one in fine)
    if arm != "coherent:k=4":  # which forgets the previous chunk when a batch falls apart
        monkeypatch.setattr("toy.WRONG", None)
        expected = [one for one in run_arm(toy(task), arm) if one.episode != 1]
        assert [row[:4] for row in without_latency(fine)] == [row[:4] for row in without_latency(expected)]


class Picky(FlowAgent):
    """Wants nothing to do with states whose third number (the time) is `moment`, in episodes that start right of `edge`."""

    edge, kind = 0.0, "raise"

    def plan(self, histories, tasks):
        chunks = super().plan(histories, tasks)
        for row, history in enumerate(histories):
            late = history[-1]["environment_state"][2] > 0.25
            if late and history[-1]["agent_pos"][0] > self.edge:
                if self.kind == "raise":
                    raise ValueError("this state is not for me")
                chunks[row, 1] = np.nan
        return chunks


@pytest.mark.parametrize(("kind", "arm"), [("raise", "first"), ("nan", "keystone:k=4")])
def test_a_policy_that_fails_for_some_rows(toy, monkeypatch, kind, arm):
    def load(name, device=None):
        agent = Picky(load_agent(name).policy)
        agent.kind = kind
        return agent

    monkeypatch.setattr(worker_module, "load_agent", load)
    results = run_arm(toy("reach", keep_rounds=True), arm, count=8)
    wrong = [one for one in results if one.error]
    assert wrong
    assert any(one.steps > 3 and not one.error for one in results)
    for one in wrong:
        assert ("this state is not for me" if kind == "raise" else "NonFiniteAction") in one.error
        assert one.steps % 3 == (0 if kind == "raise" else 1)  # of the chunk with the NaN, what comes before it
    for one in results:  # rounds are kept, also those in which each was asked for alone
        assert [kept.number for kept in one.kept_rounds] == list(range(one.rounds))
        assert sum(len(kept.actions) for kept in one.kept_rounds) == one.steps - (bool(one.error) and kind == "nan")


def test_infinite_actions_are_not_executed(toy, monkeypatch):
    def load(name, device=None):
        agent = load_agent(name)
        agent.policy.action_std.fill_(torch.inf)
        return agent

    monkeypatch.setattr(worker_module, "load_agent", load)
    executed = []
    monkeypatch.setattr(PointEnv, "step", lambda self, action: executed.append(action))
    results = run_arm(toy(), "first")
    assert all(one.error and one.steps == 0 for one in results)
    assert not executed


def test_actions_are_clipped_to_what_the_environment_takes(toy, monkeypatch):
    def load(name, device=None):
        agent = load_agent(name)
        agent.policy.action_std.fill_(50.0)
        return agent

    monkeypatch.setattr(worker_module, "load_agent", load)
    results = run_arm(toy(keep_rounds=True), "first")  # the environment asserts it
    assert not any(one.error for one in results)
    assert all(np.abs(kept.actions).max() == 1.0 for one in results for kept in one.kept_rounds)
    assert all(np.abs(kept.candidates).max() > 1.0 for one in results for kept in one.kept_rounds)


@pytest.mark.parametrize(
    ("task", "says"),
    [("wide", "takes observations of 3 numbers, and the environment gives 4"), ("more-actions", r"shape \(2,\)")],
)
def test_a_policy_for_another_environment_ends_the_run(toy, tmp_path, task, says):
    with pytest.raises(KeystoneError, match=says):
        evaluate(toy(task), tmp_path / "run")
    assert table(tmp_path / "run") == []


class Cheat(FlowPolicy):
    """Whose K-wide calls are not its single ones."""

    def sample(self, context, noise):
        return super().sample(context, noise) + len(noise)


class Muddle(FlowPolicy):
    """Which mixes up the rows of wide batches, but not those of a single observation."""

    def sample(self, context, noise):
        return super().sample(context, noise.roll(1, 0) if len(noise) > 4 else noise)


@pytest.mark.parametrize("kind", [Cheat, Muddle])
def test_a_failed_self_check_ends_the_run(toy, tmp_path, monkeypatch, kind):

    def load(name, device=None):
        agent = load_agent(name)
        agent.policy.__class__ = kind
        return agent

    monkeypatch.setattr(worker_module, "load_agent", load)
    with pytest.raises(KeystoneError, match="self-check failed"):
        evaluate(toy(arms=["keystone:k=4"]), tmp_path / "run")
    assert table(tmp_path / "run") == []


def test_execute_decides_how_often_the_policy_is_asked(toy):
    by_arm = {arm: run_arm(toy("reach", max_steps=6), arm) for arm in ("first", "first:execute=2", "first:execute=6")}
    for arm, steps in (("first", 3), ("first:execute=2", 2), ("first:execute=6", 6)):
        assert all(one.rounds == -(-one.steps // steps) for one in by_arm[arm]), arm
    settings = toy("reach", max_steps=6, execute=2)
    assert without_latency(run_arm(settings, "first")) == without_latency(by_arm["first:execute=2"])
    assert without_latency(run_arm(settings, "first:execute=3")) == without_latency(by_arm["first"])


def test_execute_beyond_the_plan_is_refused(toy, tmp_path):
    with pytest.raises(KeystoneError, match="execute=7: this policy plans 6 steps"):
        evaluate(toy(arms=["first", "first:execute=7"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_arms_are_checked_with_their_own_execute(toy, monkeypatch):
    seen = []

    def watched(policy, arm):
        seen.append(policy.config.n_action_steps)
        return keystone.attach(policy, arm)

    monkeypatch.setattr(worker_module, "attach", watched)
    checked_worker(toy(arms=["first:execute=2", "first", "first:execute=5"]))
    assert seen == [2, 3, 5]


@pytest.mark.parametrize("steps", [0, -1, 7])
def test_a_policy_executes_some_of_what_it_plans(toy_policy, steps):
    with pytest.raises(KeystoneError, match=f"execute={steps}: this policy plans 6 steps"):
        load_agent(str(toy_policy)).execute = steps


@pytest.mark.parametrize("task", ["cannot-be-made", "close-fails"])
def test_one_bad_environment_is_the_affair_of_its_shards(toy, tmp_path, caplog, task):
    report = evaluate(toy([task, "reach"], arms=["first"], episodes=4, shard=2), tmp_path / "run")
    assert report.new == 8
    wrong = [row for row in table(tmp_path / "run") if row.error]
    fine = [row for row in table(tmp_path / "run") if not row.error]
    assert {row.task for row in wrong} == {task}
    assert sum(row.task == "reach" for row in fine) == 4
    if task == "cannot-be-made":
        assert [row.episode for row in wrong] == [0, 1, 2, 3]
        assert all("Traceback" in row.error and "the scene is not on this machine" in row.error for row in wrong)
        assert [row.initial_seed for row in wrong] == [0, 1, 2, 3]
    else:
        assert [(row.episode, row.steps) for row in wrong] == [(1, 2)]
        assert [row.episode for row in fine if row.task == task] == [0, 2, 3], "what was rolled out is kept"
        assert "could not be closed: RuntimeError('the window is stuck')" in caplog.text


def test_a_package_that_is_missing_ends_the_run(toy, tmp_path, monkeypatch):
    def make(self, task, render=False):
        raise ModuleNotFoundError("No module named 'metaworld'", name="metaworld")

    monkeypatch.setattr("toy.Toy.make", make)
    with pytest.raises(ModuleNotFoundError):
        evaluate(toy(), tmp_path / "run")
    assert table(tmp_path / "run") == []


def test_in_this_process_the_policy_is_loaded_once(toy, tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(worker_module, "load_agent", lambda *args: loads.append(args) or load_agent(*args))
    evaluate(toy(device="cpu"), tmp_path / "run")
    assert [device for _, device in loads] == ["cpu"]


def test_for_other_processes_the_policy_is_tried_on_the_cpu_and_let_go(toy, tmp_path, monkeypatch):
    loads = []

    def load(name, device=None):
        agent = load_agent(name)
        loads.append((device, weakref.ref(agent.policy)))
        return agent

    class Elsewhere(RayCluster):
        def __call__(self, settings, shards):
            assert [policy() for _, policy in loads] == [None]
            assert (Path(settings.policy).is_absolute(), settings.device) == (True, "cuda")
            return iter(())

    monkeypatch.setattr(worker_module, "load_agent", load)
    evaluate(toy(device="cuda"), tmp_path / "run", Elsewhere())
    assert [device for device, _ in loads] == ["cpu"]


def test_workers_get_the_whole_path_and_know_the_policy(toy, toy_policy, tmp_path, monkeypatch):
    monkeypatch.chdir(toy_policy.parent)
    sent = []

    class Elsewhere(RayCluster):
        def __call__(self, settings, shards):
            sent.append(settings)
            return iter(())

    evaluate(replace(toy(), policy=toy_policy.name), tmp_path / "run", Elsewhere())
    assert sent[0].policy == str(toy_policy)
    assert Worker(sent[0]).agent.policy
    other = save_random_flow(tmp_path / "other", seed=5)  # the folder of the same name on another machine
    with pytest.raises(KeystoneError, match="differs from the one this evaluation was started with"):
        InProcess().worker(replace(sent[0], policy=str(other)))
    evaluate(toy(policy="metaworld-mixed", allow_untrained_tasks=True), tmp_path / "shipped", Elsewhere())
    assert sent[1].policy == "metaworld-mixed", "where the package is installed, they find it by its name"


def test_a_policy_that_cannot_be_loaded_is_no_shards_affair(toy, tmp_path, monkeypatch):
    def load(name, device=None):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(worker_module, "load_agent", load)
    with pytest.raises(KeystoneError, match="cannot be loaded: OutOfMemoryError: CUDA out of memory"):
        evaluate(toy(), tmp_path / "run")


def test_one_arm_leaves_nothing_to_the_next(toy):
    settings = toy()
    alone = run_arm(settings, "first")
    worker = Worker(settings)
    for text in ("coherent:k=4,execute=1", "keystone:k=4,temperature=0.1", "first"):
        results = worker.run(Shard(Spec.parse(text), "reach", 0, 0, 4)).episodes
    assert without_latency(results) == without_latency(alone)
    assert keystone.attached(worker.agent.policy) is None


def test_an_arm_is_attached_and_checked_once_per_worker(toy, monkeypatch, caplog):
    """And the rows are those of workers that attach and check for every shard."""
    attached = []
    monkeypatch.setattr(
        worker_module, "attach", lambda policy, arm: attached.append(str(arm)) or keystone.attach(policy, arm)
    )
    settings = toy(arms=["coherent:k=4", "keystone:k=4,execute=2"], episodes=8, shard=2)
    worker = Worker(settings)
    with caplog.at_level(logging.INFO, "keystone"):
        together = [worker.run(shard).episodes for shard in settings.shards()]
    assert attached == ["coherent:k=4", "keystone:k=4,execute=2"]
    assert caplog.text.count("self-check passed") == 2
    alone = [Worker(settings).run(shard).episodes for shard in settings.shards()]
    assert list(map(without_latency, together)) == list(map(without_latency, alone))


def test_an_arm_whose_fast_path_failed_is_checked_again(toy, monkeypatch):
    """Else the path of a shard would depend on the shards before it."""
    settings = toy(arms=["keystone:k=4"], episodes=4, shard=2)
    worker = Worker(settings)
    handles = []

    def roll_out(agent, handle, *args, **given):
        handles.append(handle)
        if len(handles) == 1:
            handle.engine.paths.refused.add("some situation")
        return []

    monkeypatch.setattr(worker_module, "roll_out", roll_out)
    for shard in (*settings.shards(), settings.shards()[0]):
        worker.run(shard)
    assert handles[0] is not handles[1]
    assert handles[1] is handles[2]


def test_latency_can_be_switched_off(toy, monkeypatch):
    calls = []
    plan = FlowAgent.plan
    monkeypatch.setattr(
        FlowAgent, "plan", lambda self, histories, tasks: calls.append(len(histories)) or plan(self, histories, tasks)
    )
    timed = run_arm(toy(), "keystone:k=4")
    assert all(one.latency_ms > 0 for one in timed)
    assert calls.count(1) >= 4
    calls.clear()
    plain = run_arm(toy(latency=False), "keystone:k=4")
    assert [one.latency_ms for one in plain] == [None] * 4
    assert calls[:2] == [4, 4]
    assert without_latency(plain) == without_latency(timed)


def test_what_the_candidates_agree_on_is_recorded(toy):
    for one in run_arm(toy(keep_rounds=True), "keystone:k=4"):
        for name in ("consensus", "dispersion", "median_distance"):
            values = [getattr(kept, name) for kept in one.kept_rounds]
            assert getattr(one, name) == pytest.approx(np.mean(values))
        assert all(kept.median_distance > 0 for kept in one.kept_rounds)
    first = run_arm(toy(), "first")[0]
    assert (first.consensus, first.dispersion, first.median_distance) == (None, None, None)


def test_synthesised_chunks_are_marked(toy):
    for text, made in (("mean:k=4", True), ("cluster-mean:k=4,tau=0", True), ("medoid:k=4", False)):
        results = run_arm(toy(keep_rounds=True), text)
        assert all(kept.synthesised == made for one in results for kept in one.kept_rounds), text


def test_a_remembering_rule_compares_each_episode_with_its_own_past(toy, monkeypatch):
    """Episodes end at different times; those that go on must not be compared with another's chunk."""

    def watched(candidates, rule, *args, **options):
        previous.append(None if rule.previous is None else np.asarray(rule.previous))
        return keystone.select(candidates, rule, *args, **options)

    def paired(self, *args):
        round = original_next(self, *args)
        rounds_seen.append(round.seeds)
        return round

    previous, rounds_seen = [], []
    original_next = Engine._next_round
    monkeypatch.setattr("keystone_robotics.sample.selector.select", watched)
    monkeypatch.setattr(Engine, "_next_round", paired)
    settings = toy(keep_rounds=True)
    results = run_arm(settings, "coherent:k=8", count=16)
    assert len({one.rounds for one in results}) > 1
    chunks = {  # by the seed of the round that follows: what was planned from then on
        settings.noise_seed(0, "reach", one.episode, kept.number + 1): kept.candidates[kept.index][3:]
        for one in results
        for kept in one.kept_rounds
    }
    rounds = [(seeds, before) for seeds, before in zip(rounds_seen, previous, strict=True) if before is not None]
    assert {len(seeds) for seeds, _ in rounds} - {1, 16}, "the batch never shrank"
    for seeds, before in rounds:
        assert len(seeds) == len(before)
        for seed, mine in zip(seeds, before):
            if seed == settings.noise_seed(0, "reach", 0, 0):
                continue  # the call that measures the latency, after the one that loads and checks
            np.testing.assert_allclose(mine, chunks[seed], atol=1e-6)


def test_a_remembering_rule_survives_a_batch_that_falls_apart(toy):
    settings = toy("nan", keep_rounds=True)
    results = run_arm(settings, "coherent:k=4", count=8)
    assert [one.episode for one in results if one.error] == [1, 5]
    assert all("NoValidCandidate" in one.error for one in results if one.error)


def test_no_latency_includes_the_first_call(toy, monkeypatch):
    """The call that loads and checks is not measured, also where the first episode cannot be planned for."""
    calls = []

    class Counting(FlowAgent):
        def plan(self, histories, tasks):
            calls.append(len(histories))
            if len(calls) == 2:
                raise ValueError("not this one")
            return super().plan(histories, tasks)

    monkeypatch.setattr(worker_module, "load_agent", lambda name, device=None: Counting(load_agent(name).policy))
    results = run_arm(toy(), "first")
    assert results[0].latency_ms is None
    assert [one.latency_ms is not None for one in results[1:]] == [True] * 3
    # all for the check; the first, which fails; the second twice; the others; then all together
    assert calls[:7] == [4, 1, 1, 1, 1, 1, 4]


def test_the_hash_of_a_state():
    state = {"a": np.array([0.1, -0.0]), "b": {"c": np.arange(3, dtype=np.uint8)}}
    assert hash_state(state) == hash_state({"b": {"c": np.arange(3, dtype=np.uint8)}, "a": np.array([0.1 + 1e-9, 0.0])})
    assert hash_state(state) != hash_state({"a": np.array([0.1, 1e-5]), "b": {"c": np.arange(3, dtype=np.uint8)}})
    assert hash_state(np.zeros((2, 3))) != hash_state(np.zeros((3, 2)))


def test_rounds_are_kept_only_if_asked_for(toy, tmp_path):
    evaluate(toy(), tmp_path / "without")
    evaluate(toy(keep_rounds=True), tmp_path / "with")
    assert table(tmp_path / "without") == table(tmp_path / "with")
    with Store(tmp_path / "without") as store:
        assert store.rounds(("first", "reach", 0, 0)) == []
    with Store(tmp_path / "with") as store:
        assert len(store.rounds(("first", "reach", 0, 0))) == store.episodes()[0].rounds


def test_a_policy_that_changed_in_its_folder_is_loaded_again(toy, tmp_path):
    """Nothing of one evaluation is left in the process for the next."""
    policy = save_random_flow(tmp_path / "policy", seed=1)
    settings = toy()
    settings = replace(settings, policy=str(policy))
    evaluate(settings, tmp_path / "one")
    save_random_flow(tmp_path / "policy", seed=2)
    evaluate(settings, tmp_path / "two")
    assert table(tmp_path / "one") != table(tmp_path / "two")
    with pytest.raises(KeystoneError, match="policy was"):
        evaluate(settings, tmp_path / "one")


def test_warnings_name_the_episode(toy, caplog):
    with caplog.at_level(logging.WARNING, "keystone"):
        run_arm(toy("step-fails"), "first")
    assert "episode 1: RuntimeError: the gripper is stuck" in caplog.text
