"""Ray itself: the same rows, and workers may die."""

import os
from pathlib import Path

import pytest

import toy as toy_package
from keystone_robotics.errors import KeystoneError
from keystone_robotics.evaluate.executors.cluster import RayCluster
from keystone_robotics.evaluate.latency import measure_latencies
from keystone_robotics.evaluate.run import evaluate, for_workers
from keystone_robotics.spec import Spec
from toy import summaries, table


@pytest.fixture(scope="module", autouse=True)
def workers_know_the_toy():
    """Ray's workers import as their cluster does; and are not nice to the tests of other files, for which these would wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(toy_package.__file__).parents[1]), prepend=os.pathsep)
        patch.setenv("RAY_worker_niceness", "0")
        yield


@pytest.fixture(scope="module")
def ray():
    """Imported by the worker that runs this file alone."""
    import ray

    return ray


@pytest.fixture(scope="module")
def cluster(workers_know_the_toy):
    """One that is running already, as a user's would be."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": 100_000_000},
    )
    yield cluster.address
    cluster.shutdown()


@pytest.fixture(scope="module")
def connection(ray, cluster):
    """Connected once: Ray then gives later tests the workers of earlier ones, which have imported torch already."""
    ray.init(address=cluster, log_to_driver=False, logging_level="error")
    yield RayCluster("auto", workers=1)
    assert ray.is_initialized()  # what was there before is left
    ray.shutdown()


def test_a_cluster_that_is_not_there(toy, tmp_path):
    with pytest.raises(KeystoneError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        evaluate(toy(), tmp_path / "run", RayCluster("127.0.0.1:1"))


def test_a_cluster_that_does_not_start_in_time(ray, toy, tmp_path, monkeypatch):
    def late(**_):
        raise Exception("The current node timed out during startup.")  # Ray's own words and class

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(KeystoneError, match="no Ray cluster at 'local': The current node timed out"):
        evaluate(toy(), tmp_path / "run", RayCluster("local"))


def test_a_cluster_of_this_machine(ray, toy, tmp_path):
    settings = toy(arms=["first"], episodes=2)
    with RayCluster("local", workers=1) as executor:
        assert evaluate(settings, tmp_path / "run", executor).new == 2
        assert ray.is_initialized(), "within the block the cluster outlives a call"
        assert evaluate(settings, tmp_path / "again", executor).new == 2
    assert not ray.is_initialized()


def test_the_same_rows_also_when_a_worker_dies_once(ray, cluster, toy, tmp_path):
    settings = toy(["reach", "dies-once"], arms=["first", "coherent:k=4"], episodes=4, shard=2)
    report = evaluate(settings, tmp_path / "ray", RayCluster(cluster, workers=2))
    assert (tmp_path / "died").exists()
    assert (report.new, [summary.errors for summary in summaries(report)]) == (16, [0, 0])
    assert not ray.is_initialized()
    evaluate(settings, tmp_path / "here")
    assert table(tmp_path / "ray") == table(tmp_path / "here")


def test_the_policys_folder_is_found_although_it_is_named_from_here(connection, toy, toy_policy, tmp_path, monkeypatch):
    monkeypatch.chdir(toy_policy.parent)
    settings = toy(policy=toy_policy.name, arms=["first"], episodes=2)
    assert evaluate(settings, tmp_path / "run", connection).new == 2


def test_a_shard_that_always_kills_its_worker_is_counted(connection, toy, tmp_path):
    evaluate(toy("dies-always", arms=["first"], shard=1, episodes=2), tmp_path / "run", connection)
    rows = table(tmp_path / "run")
    assert [row.error for row in rows] == [None, "its worker process died of SIGKILL (3 died with this episode)"]


def test_a_set_up_that_is_wrong_is_said_by_the_worker(connection, toy, tmp_path):
    with pytest.raises(KeystoneError, match="takes observations of 3 numbers"):
        evaluate(toy("wide", arms=["first"]), tmp_path / "run", connection)
    assert table(tmp_path / "run") == []


def test_a_worker_that_dies_at_start_is_no_shards_affair(connection, toy, toy_policy, tmp_path):
    policy = f"toy:dies_at_start?folder={toy_policy}&parent={os.getpid()}"
    with pytest.raises(KeystoneError, match="died while starting; nothing was rolled out"):
        evaluate(toy(policy=policy, arms=["first"]), tmp_path / "run", connection)
    assert table(tmp_path / "run") == []


def test_a_gpu_that_no_machine_of_the_cluster_has(connection, toy, tmp_path):
    with pytest.raises(KeystoneError, match="--gpus 1000: the Ray cluster has"):
        evaluate(toy(), tmp_path / "run", RayCluster("auto", gpus=1000.0))


def test_latencies_are_measured_where_the_episodes_are_rolled_out(connection, toy, monkeypatch):
    arms = [Spec("first"), Spec("medoid", 2), Spec("first", execute=99)]
    monkeypatch.setattr("keystone_robotics.evaluate.executors.in_process.Worker", None)  # not in this process
    found = measure_latencies(connection, for_workers(toy()), arms)
    assert list(found.milliseconds) == ["first", "medoid:k=2"]
    assert "execute=99" in found.refused["first:execute=99"]
