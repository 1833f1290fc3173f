"""Environments and policies that exit, crash, hang or leak: the episode at fault is found, the others are not touched."""

import multiprocessing.forkserver
from dataclasses import replace

import pytest

from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.activity import Activity, Doing, Note
from keystone_robotics.evaluate.config import Shard
from keystone_robotics.evaluate.executors import process as process_module
from keystone_robotics.evaluate.executors import processes as processes_module
from keystone_robotics.evaluate.executors.process import Failure, Job
from keystone_robotics.evaluate.executors.processes import LocalProcesses
from keystone_robotics.evaluate.run import evaluate
from keystone_robotics.spec import Spec
from toy import table


@pytest.fixture(scope="module")
def executor():
    """One worker for all tests, as long as it lives."""
    with LocalProcesses(1, episode_timeout=2.0) as executor:
        yield executor


@pytest.fixture
def settings(toy):
    """One shard of four episodes; environments go wrong in episode 1."""
    return lambda task="reach", **given: toy(task, arms=["medoid:k=2"], shard=4, episodes=4, **given)


@pytest.fixture
def check_only(settings, tmp_path):
    """Checks that a run has errors in these episodes only, and that the others are as if nothing had gone wrong."""

    def check(wrong, task="reach"):
        calm = settings(task)
        evaluate(replace(calm, env=f"{calm.env}&calm=yes"), tmp_path / "calm")
        rows = table(tmp_path / "run")
        assert [row.episode for row in rows if row.error] == wrong
        assert [row for row in rows if not row.error] == [
            row for row in table(tmp_path / "calm") if row.episode not in wrong
        ]
        return rows

    return check


def test_an_environment_that_exits_is_an_error_of_its_episode_also_in_this_process(settings, check_only, tmp_path):
    evaluate(settings("exits"), tmp_path / "run")
    rows = check_only([1], "exits")
    assert rows[1].error.endswith("SystemExit: the simulator has ended\n")


@pytest.mark.parametrize("task", ["hangs", "blocks"])
def test_an_environment_that_hangs(settings, check_only, tmp_path, executor, task):
    evaluate(settings(task), tmp_path / "run", executor)
    rows = check_only([1], task)
    assert "its environment took more than 2 s; its worker process was killed" in rows[1].error
    assert "in go_wrong" in rows[1].error, "where it hung"
    assert rows[1].initial_seed == 1


def test_an_environment_that_crashes(settings, check_only, tmp_path, executor):
    """Workers die more than once; only the episodes at fault are stored as errors."""
    evaluate(settings("aborts"), tmp_path / "run", executor)
    rows = check_only([1], "aborts")
    assert "died of SIGABRT (3 died with this episode)" in rows[1].error
    assert "in go_wrong" in rows[1].error, "where it crashed"


@pytest.mark.parametrize(
    ("how", "says"), [("exits", "SystemExit"), ("aborts", "SIGABRT"), ("blocks", "the policy took")]
)
def test_a_policy_that_goes_wrong_for_one_episode(settings, check_only, toy_policy, tmp_path, executor, how, says):
    """Where a batch of several goes wrong, who is at fault is found by telling them apart."""
    evaluate(settings(policy=f"toy:goes_wrong?folder={toy_policy}&how={how}"), tmp_path / "run", executor)
    assert says in check_only([2])[2].error


def test_a_policy_that_exits_when_it_is_loaded_is_a_wrong_set_up(settings, tmp_path, executor):
    for policy, says in (
        ("toy:goes_wrong_when_loaded?how=exits", "the simulator has ended"),
        ("toy:goes_wrong_when_loaded?how=aborts", "died while starting"),
    ):
        with pytest.raises(KeystoneError, match=says):
            evaluate(settings(policy=policy), tmp_path / "run", executor)
    assert not (tmp_path / "run").exists()


def test_a_worker_has_the_environment_of_the_command_and_nothing_else(settings, tmp_path, monkeypatch):
    """Workers are forks of a server that may have been started with other variables."""
    multiprocessing.forkserver.ensure_running()
    monkeypatch.setenv("ADDED", "1")
    monkeypatch.delenv("PATH")
    with pytest.raises(KeystoneError, match="variables") as caught, LocalProcesses(1) as executor:
        evaluate(settings(policy="toy:goes_wrong_when_loaded?how=tells-its-environment"), tmp_path / "run", executor)
    names = str(caught.value).split()
    assert "ADDED" in names
    assert "PATH" not in names


def test_a_worker_that_ends_while_its_stack_is_asked_for(settings, monkeypatch):
    worker = process_module.WorkerProcess()
    worker.kill()
    monkeypatch.setattr(process_module.multiprocessing.connection, "wait", lambda *args: [])
    failure = worker._hang(Note(Doing.ENVIRONMENT, 3, 0.0), 2.0)
    assert failure.hung
    assert "its environment took more than 2 s" in failure.reason


def test_a_worker_that_leaks_is_replaced_between_shards(toy, tmp_path, caplog):
    settings = toy("leaks", arms=["medoid:k=2"], shard=2, episodes=8)
    evaluate(settings, tmp_path / "expected", LocalProcesses(1))
    assert "may leak" not in caplog.text
    evaluate(settings, tmp_path / "run", LocalProcesses(1, memory_growth=0.02))
    assert caplog.text.count("is replaced: the environment or the policy may leak") == 1
    assert table(tmp_path / "run") == table(tmp_path / "expected")


def test_one_worker_serves_several_evaluations_and_this_process_loads_nothing(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("keystone_robotics.evaluate.worker.load_agent", None)
    started = []

    class Counted(process_module.WorkerProcess):
        def __init__(self):
            super().__init__()
            started.append(self)

    monkeypatch.setattr(processes_module, "WorkerProcess", Counted)
    with LocalProcesses(1) as executor:
        for number in range(2):
            assert evaluate(replace(settings(), seed=number), tmp_path / f"run{number}", executor).new == 4
        assert len(started) == 1
        started[0].kill()  # between two evaluations
        assert evaluate(settings(), tmp_path / "run2", executor).new == 4
        assert started[1].is_alive
    assert not started[1].is_alive


# ---- the rules, without processes


SHARD = Shard(Spec("medoid", k=2), "reach", 0, 0, 8)


def judge(executor, job, doing, episode=None, hung=False):
    return executor._judge(job, Failure(Note(doing, episode, 0.0), hung, "it died", ""))


def bring_to_an_end(killers, doing, hung=False):
    """What is found if every job with one of these episodes fails; how many workers that takes."""
    executor, found, fine, workers = LocalProcesses(1), [], [], 0
    jobs = [Job(SHARD, tuple(SHARD.episodes))]
    while jobs:
        job = jobs.pop(0)
        guilty = [number for number in job.episodes if number in killers]
        if not guilty:
            fine += job.episodes
            continue
        workers += 1
        known = guilty[0] if doing is Doing.ENVIRONMENT or len(job.episodes) == 1 else None
        failed, again = judge(executor, job, doing, known, hung)
        found += failed
        jobs = again + jobs
    assert sorted(found + fine) == list(SHARD.episodes)
    return sorted(found), workers


@pytest.mark.parametrize("killers", [[0], [7], [2, 3], [1, 4, 6], list(range(8))])
@pytest.mark.parametrize("hung", [False, True])
def test_those_at_fault_are_found_and_nobody_else(killers, hung):
    for doing in (Doing.ENVIRONMENT, Doing.POLICY):
        found, workers = bring_to_an_end(killers, doing, hung)
        assert found == killers
        assert workers <= (1 if hung and doing is Doing.ENVIRONMENT else 7) * len(killers)


def test_what_no_episode_can_be_blamed_for():
    executor, job = LocalProcesses(1), Job(SHARD, tuple(SHARD.episodes))
    with pytest.raises(KeystoneError, match="died while starting; nothing was rolled out"):
        judge(executor, job, Doing.LOADING)
    judge(executor, job, Doing.POLICY)  # by then the policy was loaded
    executor._failed_starts = 0
    assert judge(executor, job, Doing.LOADING) == ((), [job])
    assert judge(executor, job, Doing.NOTHING) == ((), [job])
    with pytest.raises(KeystoneError, match=r"3 times in a row while loading the policy.* finished shards are stored"):
        judge(executor, job, Doing.LOADING)


def test_environments_that_cannot_be_made_are_the_shards_affair():
    executor, job = LocalProcesses(1), Job(SHARD, tuple(SHARD.episodes))
    for _ in range(2):
        failed, (job,) = judge(executor, job, Doing.PREPARING)
        assert failed == ()
    assert judge(executor, job, Doing.PREPARING) == (tuple(SHARD.episodes), [])


def test_how_long_an_episode_may_take():
    executor = LocalProcesses(1)
    limits = {doing: executor._limit(doing) for doing in Doing}
    assert limits[Doing.LOADING] == limits[Doing.NOTHING] == float("inf")
    assert {limits[doing] for doing in (Doing.PREPARING, Doing.ENVIRONMENT, Doing.POLICY)} == {1800.0}
    for slowest, expected in ((0.1, 60.0), (30.0, 600.0), (600.0, 12_000.0)):
        executor._slowest = slowest
        assert executor._limit(Doing.ENVIRONMENT) == expected
        assert executor._limit(Doing.POLICY) == 1800.0
    given = LocalProcesses(1, episode_timeout=5)
    assert given._limit(Doing.ENVIRONMENT) == given._limit(Doing.POLICY) == 5
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(KeystoneError, match="expected seconds, more than 0"):
            LocalProcesses(1, episode_timeout=wrong)


def test_what_a_worker_notes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("keystone_robotics.evaluate.activity.time.monotonic", lambda: now[0])
    activity = Activity()
    assert activity.read().doing is Doing.NOTHING
    with activity.doing(Doing.PREPARING):
        with activity.environment(3):
            now[0] = 107.0
            assert activity.read() == (Doing.ENVIRONMENT, 3, 100.0)
        with activity.policy([3, 4]):
            now[0] = 110.0
            assert activity.read() == (Doing.POLICY, None, 107.0)
        with activity.policy([4]):
            assert activity.read() == (Doing.POLICY, 4, 110.0)
        with activity.environment(3):
            assert activity.read() == (Doing.ENVIRONMENT, 3, 103.0), "seven seconds were spent before"
        assert activity.read() == (Doing.PREPARING, None, 110.0)
    assert activity.slowest == 7.0
    activity.begin_shard()
    assert activity.slowest == 0.0


def test_time_in_which_nothing_ran_is_no_hang(monkeypatch):
    """After Ctrl-Z and fg, or a laptop that slept, workers are not taken for hanging."""
    executor = LocalProcesses(1, episode_timeout=1.0)

    class Suspended:
        job, allowance, waits_for = object(), 0.0, []

    executor._crew = [Suspended()]
    executor._looked = processes_module.time.monotonic() - 3600
    executor._wait()
    assert executor._crew[0].allowance == pytest.approx(3600, abs=5)
