"""Which robots are answered in which round, and with which K: a pure function of queue, latencies and clock."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_robotics.serve.messages import Refused, Waiting
from keystone_robotics.serve.scheduler import LatencyTable, Limits, Scheduler, Setting

SETTINGS = Limits().settings(16)


def table(per_candidate=0.001, fixed=0.002):
    """A round takes a fixed time and one for each candidate of each robot."""
    found = LatencyTable()
    for size in (1, 2, 4, 8):
        for setting in SETTINGS:
            found.measure(size, setting, fixed + per_candidate * size * setting.k)
    return found


def scheduler(**options):
    return Scheduler(SETTINGS, table(), **{"max_batch": 8, **options})


def next_and_finish(one, now):
    """The next round of the only replica, which has ended before the one after it."""
    batch = one.next(now)
    if batch is not None:
        one.finish(batch)
    return batch


def request(robot, arrived=0.0, within=math.inf, group="same", observed=None):
    return Waiting(robot, group, arrived, arrived + within, observed)


def test_alone_and_without_a_deadline_a_robot_gets_all_candidates():
    one = scheduler()
    one.submit(request("a"))
    batch = next_and_finish(one, 0.0)
    assert ([w.robot for w in batch.waiting], batch.setting, batch.late) == (["a"], Setting(16), 0)
    assert next_and_finish(one, 0.0) is None


def test_k_falls_with_the_number_of_robots_and_is_given_back():
    found = []
    for robots in (1, 2, 4, 8, 2, 1):
        one = scheduler()
        for number in range(robots):
            one.submit(request(str(number), within=0.040))
        found.append(next_and_finish(one, 0.0).setting.k)
    assert found == [16, 16, 8, 4, 16, 16]  # 2 ms + robots · K · 1 ms within 40 ms


def test_those_that_wait_for_the_next_round_count_too():
    one = scheduler(max_batch=1)
    for number in range(3):
        one.submit(request(str(number), within=0.040))
    # three rounds of 2 ms + K · 1 ms, one after the other
    assert next_and_finish(one, 0.0).setting.k == 8


def test_a_newer_request_replaces_the_older_one_of_the_same_robot():
    one = scheduler()
    first, second = request("a"), request("a", 0.1)
    assert one.submit(first) is None
    assert one.submit(second) is first
    assert next_and_finish(one, 0.2).waiting == [second]
    assert one.submit(request("a", 0.3)) is None  # the other one has begun


def test_what_is_not_alike_is_not_mixed_and_the_earliest_deadline_goes_first():
    one = scheduler()
    for robot, within, group in (("a", 9, "x"), ("b", 5, "y"), ("c", 7, "x"), ("d", 8, "y")):
        one.submit(request(robot, within=within, group=group))
    rounds = [[w.robot for w in next_and_finish(one, 0.0).waiting] for _ in range(2)]
    assert rounds == [["b", "d"], ["c", "a"]]


def test_a_robot_waits_for_the_end_of_its_round_and_others_do_not():
    one = scheduler(replicas=2)
    one.submit(request("a"))
    first = one.next(0.0)
    one.submit(request("a", 0.1))
    one.submit(request("b", 0.1))
    assert [w.robot for w in one.next(0.1).waiting] == ["b"]
    assert one.next(0.1) is None
    one.finish(first)
    assert [w.robot for w in one.next(0.2).waiting] == ["a"]


def test_idle_replicas_share_what_waits():
    one = scheduler(replicas=2)
    for number in range(4):
        one.submit(request(str(number), within=0.040))
    # two rounds at a time, each of two robots: 2 ms + 2 · 16 ms, where one replica could give four robots K = 8
    assert [(len(b.waiting), b.setting.k) for b in (one.next(0.0), one.next(0.0))] == [(2, 16), (2, 16)]


def test_a_busy_replica_counts_when_it_will_be_free():
    one = scheduler(replicas=2, max_batch=1)
    one.submit(request("busy"))
    assert one.next(0.0).setting.k == 16  # for 18 ms
    for number in range(2):
        one.submit(request(str(number), within=0.030))
    assert one.next(0.0).setting.k == 8  # both by one replica, 10 ms each


def test_a_full_queue_refuses_and_a_replacement_still_fits():
    one = scheduler(max_waiting=2)
    one.submit(request("a"))
    one.submit(request("b"))
    with pytest.raises(Refused, match="2 requests are waiting already") as caught:
        one.submit(request("c"))
    assert caught.value.reason == "full"
    assert one.submit(request("a", 1.0)).robot == "a"


def test_an_impossible_deadline_of_one_client_costs_the_others_nothing():
    one = scheduler()
    one.submit(request("hasty", within=0.000_1))
    one.submit(request("calm", within=1.0))
    batch = next_and_finish(one, 0.0)
    assert (batch.setting.k, batch.late) == (16, 1)


def test_a_backlog_is_worked_off_with_the_fastest_setting():
    one = scheduler()
    one.submit(request("a", arrived=0.0, within=0.050))
    batch = next_and_finish(one, 0.049)  # it could have been met, and is not any more
    assert (batch.setting.k, batch.late) == (1, 1)


@pytest.mark.parametrize("within", [math.inf, 1e9])
def test_a_request_without_a_deadline_does_not_starve(within):
    one = scheduler()
    one.submit(request("calm", within=within, group="other"))
    for step in range(100):
        now = 0.05 * step
        one.submit(request("hasty", arrived=now, within=0.040))
        if next_and_finish(one, now).waiting[0].robot == "calm":
            return
    raise AssertionError("it was never answered")


def test_old_observations_are_taken_out():
    one = scheduler(max_age=0.5)
    old, new = request("a", arrived=1.0, observed=0.2), request("b", arrived=1.0)
    one.submit(old)
    one.submit(new)
    assert one.take_stale(1.0) == [old]
    assert len(one) == 1


def test_a_withdrawn_request_is_gone_and_its_successor_is_not():
    one = scheduler()
    first, second = request("a"), request("a", 1.0)
    one.submit(first)
    one.submit(second)
    assert not one.cancel(first)
    assert one.cancel(second)
    assert next_and_finish(one, 2.0) is None


robots = st.lists(
    st.tuples(
        st.integers(0, 12), st.floats(0, 1), st.one_of(st.just(math.inf), st.floats(0.001, 1)), st.sampled_from("xy")
    ),
    max_size=30,
)


@given(robots, st.integers(1, 8))
def test_everybody_is_answered_once_and_no_met_deadline_is_traded_away(asked, max_batch):
    one = scheduler(max_batch=max_batch)
    newest = {}
    for robot, arrived, within, group in asked:
        newest[str(robot)] = waiting = request(str(robot), arrived, within, group)
        one.submit(waiting)
    now, answered = 1.0, []
    while (batch := next_and_finish(one, now)) is not None:
        assert len(batch.waiting) <= max_batch
        assert len({w.group for w in batch.waiting}) == 1
        answered += batch.waiting
        if not batch.late:
            end = now + one.latency.estimate(len(batch.waiting), batch.setting)
            assert all(end <= w.deadline for w in batch.waiting)
        now += one.latency.estimate(len(batch.waiting), batch.setting)
    assert {w.robot: w for w in answered} == newest
    assert len(answered) == len(newest)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=40))
def test_the_slowest_but_one_of_the_last_rounds_corrects_all_settings(times):
    found = LatencyTable()
    found.measure(4, Setting(4), 0.5)
    found.measure(4, Setting(16), 1.0)
    for seconds in times:
        found.observe(3, Setting(4), seconds)
    recent = sorted(times[-128:])
    expected = recent[max(len(recent) - 2, 0)]
    assert found.estimate(4, Setting(4)) == pytest.approx(expected)
    assert found.estimate(4, Setting(16)) == pytest.approx(2 * expected)


def test_k_comes_back_when_a_busy_machine_is_free_again():
    one = scheduler()
    found = []
    for slowdown in (1, 8, 8, 8, *[1] * 140):
        one.submit(request("a", within=0.040))
        setting = next_and_finish(one, 0.0).setting
        found.append(setting.k)
        one.latency.observe(1, setting, slowdown * (0.002 + 0.001 * setting.k))
    assert (found[0], min(found), found[-1]) == (16, 2, 16)


def test_k_falls_also_when_not_even_one_robot_is_in_time_on_a_busy_machine():
    one = scheduler()
    for _ in range(3):
        one.latency.observe(1, Setting(1), 0.100)
    one.submit(request("a", within=0.040))
    assert next_and_finish(one, 0.0).setting.k == 1


@pytest.mark.parametrize("robots", [8, 16])
def test_99_of_100_replies_are_in_time_on_a_machine_that_has_other_work(robots):
    """Robots that ask again as soon as they have a reply; a round in 20 takes more than 1.6 times as long as alone."""
    one, noise = scheduler(max_batch=16), random.Random(0)
    now, asking, latencies, candidates = 0.0, [(0.0, robot) for robot in range(robots)], [], []
    while len(latencies) < 4000:
        now = max(now, min(asking)[0])
        for arrived, robot in [pair for pair in asking if pair[0] <= now]:
            one.submit(request(robot, arrived, within=0.2))
            asking.remove((arrived, robot))
        batch = next_and_finish(one, now)
        undisturbed = 0.002 + 0.001 * len(batch.waiting) * batch.setting.k
        seconds = undisturbed * max(math.exp(noise.gauss(0, 0.3)), 1)
        one.latency.observe(len(batch.waiting), batch.setting, seconds)
        now += seconds
        for waiting in batch.waiting:
            latencies.append(now - waiting.arrived)
            candidates.append(batch.setting.k)
            asking.append((now + 0.001, waiting.robot))
    assert sorted(latencies)[int(0.99 * len(latencies))] <= 0.2
    assert sum(candidates) / len(candidates) > 2  # and not by giving all of them up
