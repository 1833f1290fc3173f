"""openpi's own client, unmodified, against the server: replies, many robots at once, deadlines, errors in words."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections import deque

import numpy as np
import pytest
import torch
from openpi_client import msgpack_numpy
from openpi_client.action_chunk_broker import ActionChunkBroker
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from serving import STATE, PointAgent, flow_policy, make_model, serving, state

import keystone_robotics as keystone
from keystone_robotics.monitor.alarm import Alarm
from keystone_robotics.monitor.calibration import Calibration
from keystone_robotics.serve.messages import Ask, Refused, RobotId
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.observations import fit
from keystone_robotics.serve.policy import ServedAgent, ServedMessages
from keystone_robotics.serve.replica import Replica, RoundFailed
from keystone_robotics.serve.rounds import Robot, Rounds
from keystone_robotics.serve.scheduler import Limits, Setting
from keystone_robotics.serve.service import Client, Guard
from keystone_robotics.spec import Spec
from keystone_study.policies.flow import FlowPolicy


def connect(ports, **more):
    return WebsocketClientPolicy("127.0.0.1", ports["openpi"], **more)


def in_threads(functions):
    results = [None] * len(functions)

    def run(number, function):
        try:
            results[number] = function()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def expected_chunk(numbers, seed, spec="core-mean:k=8"):
    """What `keystone.attach` gives for this observation and seed, without a server."""
    agent = PointAgent()
    handle = keystone.attach(agent.policy, spec)
    with handle.seeded(seed):
        return agent.plan([[{STATE: state(*numbers)}]], [""])[0]


@pytest.fixture(scope="module")
def server():
    with serving("openpi") as (service, ports):
        yield service, ports


def test_a_reply_has_the_chunk_and_says_how_it_was_chosen(server):
    _, ports = server
    client = connect(ports)
    assert client.get_server_metadata()["keystone"]["policy"] == "point"
    assert client.get_server_metadata()["keystone"]["inputs"] == [STATE]
    reply = client.infer({STATE: state(1, 2), "prompt": "push", "keystone_seed": 7})
    np.testing.assert_allclose(reply["actions"], expected_chunk((1, 2), 7), rtol=1e-5, atol=1e-6)
    said = reply["keystone"]
    assert (said["k"], said["rule"], said["degraded"], said["late"], said["batch"]) == (8, "core-mean", False, False, 1)
    assert {"consensus", "dispersion", "queue_ms", "model_ms", "seed"} <= set(said)
    assert abs(said["observed_at"] - time.time()) < 60
    assert reply["server_timing"]["infer_ms"] > 0


def test_openpis_broker_executes_the_chunk_step_by_step(server):
    _, ports = server
    broker = ActionChunkBroker(connect(ports), action_horizon=4)
    first = broker.infer({STATE: state(1), "keystone_seed": 3})["actions"]
    second = broker.infer({STATE: state(1), "keystone_seed": 3})["actions"]
    np.testing.assert_allclose([first, second], expected_chunk((1,), 3)[:2], rtol=1e-5, atol=1e-6)


def test_robots_that_wait_share_a_round_and_get_their_own_chunks():
    agent = PointAgent()
    with serving("openpi", model=make_model(agent=agent)) as (service, ports):
        clients = [connect(ports) for _ in range(5)]
        agent.go.clear()
        asks = [lambda c=c, n=n: c.infer({STATE: state(n), "keystone_seed": n}) for n, c in enumerate(clients)]
        first = threading.Thread(target=asks[0])
        first.start()
        assert agent.begun.wait(10)
        threading.Timer(0.0, lambda: (wait_until(lambda: service.model.waiting == 4), agent.go.set())).start()
        replies = in_threads(asks[1:])
        first.join()
    assert [len(batch) for batch in agent.batches] == [1, 4]
    for number, reply in enumerate(replies, start=1):
        assert reply["keystone"]["batch"] == 4
        np.testing.assert_allclose(reply["actions"], expected_chunk((number,), number), rtol=1e-4, atol=1e-5)


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def test_a_model_error_answers_that_robot_in_words_and_nobody_else():
    agent = PointAgent()
    with serving("openpi", model=make_model(agent=agent)) as (service, ports):
        clients = [connect(ports) for _ in range(4)]
        agent.go.clear()
        asks = [lambda c=c, n=n: c.infer({STATE: state(n)}) for n, c in zip((1, 2, 500, 3), clients)]
        threading.Timer(0.0, lambda: (wait_until(lambda: service.acting == 4), agent.go.set())).start()
        good, other, bad, last = in_threads(asks)
        assert "the policy failed: ValueError: the arm is out of reach" in str(bad)
        assert all(reply["actions"].shape == (6, 2) for reply in (good, other, last))
        assert clients[2].infer({STATE: state(4)})["actions"].shape == (6, 2)  # its connection goes on


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ({"elsewhere": 1}, "the policy takes environment_state, and the observation has 'elsewhere'"),
        ({STATE: np.zeros(4)}, r"environment_state is an array \(4,\) of float64: expected numbers of shape \(3,\)"),
        ({STATE: np.array([np.nan, 0, 0])}, "environment_state has a NaN"),
        ({STATE: "high"}, "environment_state is a str: expected numbers"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused_in_words(server, observation, words):
    _, ports = server
    client = connect(ports)
    with pytest.raises(RuntimeError, match=words):
        client.infer(observation)
    assert client.infer({STATE: state(1)})["actions"].shape == (6, 2)


def test_all_missing_inputs_are_named():
    with pytest.raises(Refused, match="the policy takes front, wrist, and the observation has 'state'"):
        fit({"state": [0.0]}, {"state": np.zeros(1), "front": np.zeros(1), "wrist": np.zeros(1)})


def test_a_newer_request_of_a_robot_replaces_the_older_that_has_not_begun():
    agent = PointAgent()
    with serving("openpi", model=make_model(agent=agent)) as (service, ports):
        agent.go.clear()
        busy = threading.Thread(target=lambda: connect(ports).infer({STATE: state(9)}))
        busy.start()
        assert agent.begun.wait(10)
        older = []
        ask = {STATE: state(1), "keystone_episode": "arm 1"}
        waiting = threading.Thread(target=lambda: older.extend(in_threads([lambda: connect(ports).infer(ask)])))
        waiting.start()
        wait_until(lambda: service.model.waiting == 1)
        newer = threading.Thread(target=lambda: connect(ports).infer({**ask, STATE: state(2)}))
        newer.start()
        waiting.join(20)
        agent.go.set()
        for thread in (newer, busy):
            thread.join(20)
    assert "a newer request of the same robot" in str(older[0])
    assert agent.batches == [[9.0], [2.0]]


def test_k_follows_the_deadline_and_comes_back():
    model = make_model("core-mean:k=8", warm=False)
    for setting in model.scheduler.settings:
        model.latency.measure(1, setting, 0.010 * setting.k)  # as if measured on a slow machine
    with serving("openpi", model=model) as (_, ports):
        client = connect(ports)
        replies = [client.infer({STATE: state(1), "keystone_deadline_ms": ms})["keystone"] for ms in (45, 1000)]
    assert (replies[0]["k"], replies[0]["degraded"]) == (4, True)
    assert "to meet the deadlines" in replies[0]["degraded_reason"]
    assert (replies[1]["k"], replies[1]["degraded"]) == (8, False)


def test_an_observation_older_than_max_age_is_refused():
    with serving("openpi", model=make_model(limits=Limits(max_age=5.0))) as (_, ports):
        client = connect(ports)
        assert client.infer({STATE: state(1), "keystone_time": time.time()})["actions"].shape == (6, 2)
        with pytest.raises(RuntimeError, match=r"the observation is 9\d s old: at most 5 s"):
            client.infer({STATE: state(1), "keystone_time": time.time() - 90})


def test_an_observation_that_becomes_too_old_while_a_round_hangs_is_refused():
    agent = PointAgent()
    with serving("openpi", model=make_model(limits=Limits(max_age=0.3), agent=agent)) as (service, ports):
        agent.go.clear()
        hanging = connect(ports)
        hanging._ws.send(msgpack_numpy.packb({STATE: state(9)}))
        assert agent.begun.wait(10)
        queued = connect(ports)
        queued._ws.send(msgpack_numpy.packb({STATE: state(1)}))
        try:
            assert "s old: at most 0.3 s (--max-age)" in queued._ws.recv(timeout=10)
            assert service.model.waiting == 0
        finally:
            agent.go.set()
        assert "s old: at most 0.3 s" in hanging._ws.recv(timeout=10)
    assert agent.batches == [[9.0]]


def test_an_observation_from_the_future_is_refused():
    model = make_model(limits=Limits(max_age=5.0), warm=False)
    with pytest.raises(Refused, match=r"the observation is of 9\d s from now: set the robot's clock"):
        model.submit(Ask(RobotId("a"), {STATE: state(1)}, observed_at=time.time() + 95), print)
    model.submit(Ask(RobotId("a"), {STATE: state(1)}, observed_at=time.time() + 4), print)


def test_a_reply_that_became_too_old_in_its_round_is_refused_and_neither_counted_nor_remembered():
    now, counted = [0.0], []
    model = make_model(
        "coherent:k=8", Limits(max_age=5.0), clock=lambda: now[0], on_batch=lambda *batch: counted.extend(batch[2])
    )
    plan, outcomes = model.replicas.served.agent.plan, []

    def slow(histories, tasks):
        now[0] += 6.0
        return plan(histories, tasks)

    model.replicas.served.agent.plan = slow
    model.submit(_ask(RobotId("a", True)), outcomes.append)
    answer_next(model, now[0])
    assert "the observation is 6 s old: at most 5 s" in str(outcomes[0])
    assert counted == []
    assert model._robots[RobotId("a", True)].chunk is None


def test_robots_of_one_round_look_back_at_their_own_chunks():
    def last_chunks(*batches):
        model, found = make_model("coherent:k=8,seed=0"), {}
        for names in [*batches, *batches]:
            for name in names:
                model.submit(_ask(RobotId(name, True)), lambda reply, name=name: found.update({name: reply.actions}))
            answer_next(model, 0.0)
        return found

    alone, together = last_chunks("a", "b", "c"), last_chunks("abc")
    for name in "abc":
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-5, atol=1e-6)


def test_robots_that_begin_an_episode_keep_no_others_waiting_for_their_round():
    model, found = make_model("coherent:k=8"), {}
    batches = []
    for names in ("ab", "abcd"):
        for name in names:
            model.submit(_ask(RobotId(name, True)), lambda reply, name=name: found.update({name: reply}))
        batches.append(answer_next(model, 0.0))
    assert "".join(found) == "ab"
    batches.append(answer_next(model, 0.0))
    assert [len(one.waiting) for one in batches] == [2, 2, 2]
    assert "".join(found) == "abcd"


def test_a_robot_that_is_reset_in_the_queue_leaves_the_others_their_history():
    def second_chunk_of_b(others):
        model, found = make_model("coherent:k=8,seed=0"), {}
        for _ in range(2):
            for name in ["b", *others]:
                model.submit(_ask(RobotId(name, True)), lambda reply, name=name: found.update({name: reply.actions}))
            model.reset(RobotId("a", True))
            answer_next(model, 0.0)
        return found["b"]

    np.testing.assert_allclose(second_chunk_of_b("ac"), second_chunk_of_b(""), rtol=1e-5, atol=1e-6)


def test_a_robot_goes_on_with_its_episode_when_it_reconnects():
    """A rule that looks back compares with the robot's own last chunk, whoever was served in between."""
    spec = "coherent:k=8"
    alone = PointAgent()
    handle = keystone.attach(alone.policy, spec)
    chunks = []
    for round in range(3):
        with handle.seeded(round):
            chunks.append(alone.plan([[{STATE: state(round)}]], [""])[0])
    with serving("openpi", model=make_model(spec)) as (_, ports):
        for round in range(3):
            client, other = connect(ports), connect(ports)
            reply = client.infer({STATE: state(round), "keystone_seed": round, "keystone_episode": "arm 1"})
            np.testing.assert_allclose(reply["actions"], chunks[round], rtol=1e-5, atol=1e-6)
            other.infer({STATE: state(50 + round)})


def test_each_robot_has_its_own_alarm_wherever_its_rounds_are_computed(caplog):
    calibration = Calibration("dispersion", "high", "constant", (0.0,), 2, 0.05, 19, spec="core-mean:k=4")
    agent, alarm = PointAgent(), Alarm(calibration)
    replica = Replica(ServedAgent("point", agent), Spec.parse("core-mean:k=8"), calibration)
    model = Model(replica, Limits(max_batch=4), [alarm])
    outcomes = []
    for names in ("a", "ab"):
        for name in names:
            model.submit(_ask(RobotId(name, True)), outcomes.append)
        answer_next(model, 0.0)
    assert all(one.report["alarm"] and "dispersion" in one.report["alarm_reason"] for one in outcomes)
    assert {episode[0].name: one.rounds for episode, one in alarm._episodes.items()} == {"a": 2, "b": 1}
    assert caplog.text.count("the alarm was calibrated for something else") == 1
    assert "k was 4, now 8" in caplog.text
    model.forget(RobotId("a", True))
    assert len(alarm.active) == 1


class SmallMemory(FlowPolicy):
    """Raises what a GPU raises where more candidates of all robots are drawn than fit."""

    fit, failures, raises = 1000, 0, torch.cuda.OutOfMemoryError

    def sample(self, context, noise):
        if len(noise) > self.fit:
            self.failures += 1
            raise self.raises("DefaultCPUAllocator: out of memory")
        return super().sample(context, noise)


@pytest.fixture(params=[torch.cuda.OutOfMemoryError, RuntimeError])
def small_memory(request):
    policy = SmallMemory(flow_policy().config).eval()
    policy.raises = request.param
    return policy


def round_of(model, *names):
    outcomes = []
    for name in names:
        model.submit(_ask(RobotId(name, True)), outcomes.append)
    answer_next(model, 0.0)
    return [outcome.report for outcome in outcomes]


def test_out_of_memory_halves_k_says_so_and_is_remembered(small_memory, monkeypatch):
    monkeypatch.setattr("keystone_robotics.serve.rounds.RETRY", 3)
    model = make_model("core-mean:k=8", agent=PointAgent(small_memory))
    small_memory.fit = 3
    (said,) = round_of(model, "a")
    assert (said["k"], said["degraded"], said["degraded_reason"]) == (2, True, "K=2: more did not fit into memory")
    small_memory.failures = 0
    assert [round_of(model, "a")[0]["k"] for _ in range(2)] == [2, 2]
    assert small_memory.failures == 0
    small_memory.fit = 1000
    assert [round_of(model, "a")[0]["k"] for _ in range(2)][-1] == 8  # it recovers


def test_rounds_of_fewer_robots_follow_one_that_did_not_fit(small_memory):
    model = make_model("core-mean:k=8", agent=PointAgent(small_memory))
    small_memory.fit = 16
    first = round_of(model, *"abcd")
    assert all(one["degraded"] == (one["k"] < 8) for one in first)
    small_memory.failures = 0
    assert [one["k"] for one in round_of(model, *"abcd")] == [8, 8, 8, 8]
    assert small_memory.failures == 0


def test_another_thread_may_lift_the_limit_while_a_round_is_split():
    class LiftedWhenRead(Rounds):
        limits = iter([16])
        _fits = property(lambda self: next(self.limits, None), lambda self, value: None)

    robots = [Robot(deque()) for _ in range(4)]
    assert LiftedWhenRead(make_model(warm=False).replicas)._parts(robots, 8) == [[0, 1], [2, 3]]


def test_what_does_not_fit_is_found_in_the_warm_up(small_memory):
    small_memory.fit = 16
    model = make_model("core-mean:k=8", agent=PointAgent(small_memory))
    one, two, four = (model.latency.undisturbed(robots, Setting(8)) for robots in (1, 2, 4))
    assert one > 0
    assert four == 2 * two  # four did not fit
    keystone.detach(small_memory)
    small_memory.fit = 4
    with pytest.raises(keystone.KeystoneError, match=r"K=8 candidates .*do not fit into .*memory.*: give a smaller k"):
        make_model("core-mean:k=8", agent=PointAgent(small_memory))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_policy_may_run_out_of_memory_outside_its_sampler(error):
    class Hungry(PointAgent):
        fit = 1000

        def plan(self, histories, tasks):
            chunks = super().plan(histories, tasks)
            if len(histories) * model.replicas.handle.k > self.fit:
                raise error
            return chunks

    agent = Hungry()
    model = make_model("core-mean:k=8", agent=agent, warm=False)
    agent.fit = 16
    model.warm_up()
    two, four = (model.latency.undisturbed(robots, Setting(8)) for robots in (2, 4))
    assert four == 2 * two  # four did not fit
    agent.fit = 4
    assert [one["k"] for one in round_of(model, "a")] == [4]


def test_out_of_memory_of_one_robot_is_nobody_elses(monkeypatch):
    model = make_model("core-mean:k=8")
    monkeypatch.setattr("keystone_robotics.serve.rounds.RETRY", 2)
    run, full = model._rounds._round, {"big"}

    def limited(waiting, robots, setting):
        if setting.k > 2 and any(one.robot.name in full for one in waiting):
            raise RoundFailed("too many", out_of_memory=True)
        return run(waiting, robots, setting)

    monkeypatch.setattr(model._rounds, "_round", limited)

    def ks(*names):
        return [one["k"] for one in round_of(model, *names)]

    assert ks("a", "big", "b") == [8, 2, 8]
    assert ks("a", "big", "b") == [8, 2, 8]
    full.clear()
    assert [ks("big") for _ in range(2)][-1] == [8]  # it recovers


def test_names_and_rows_are_not_taken_for_one_another(server):
    service, _ = server
    client = Client("openpi-0")

    async def act(row=None, **more):
        await service.act(client, {STATE: state(1), **more}, row)

    async def talk():
        await act()
        await act(0, keystone_episode="E")
        await act(1, keystone_episode="E")
        await act(keystone_episode="E/0")
        await act(keystone_episode=client.name)

    asyncio.run(talk())
    ours = {
        RobotId(client.name),
        RobotId("E", True, 0),
        RobotId("E", True, 1),
        RobotId("E/0", True),
        RobotId(client.name, True),
    }
    assert ours <= set(service.model._robots)
    service.reset(client, {"keystone_episode": "E"})
    assert {one for one in ours if service.model._robots[one].episode} == {RobotId("E", True, 0), RobotId("E", True, 1)}


def test_a_round_that_hangs_does_not_keep_the_server():
    agent = PointAgent()
    with serving("openpi", model=make_model(agent=agent), drain=0.2) as (_, ports):
        agent.go.clear()
        client, outcome = connect(ports), []
        asking = threading.Thread(target=lambda: outcome.extend(in_threads([lambda: client.infer({STATE: state(1)})])))
        asking.start()
        assert agent.begun.wait(10)
        begin = time.monotonic()
    assert time.monotonic() - begin < 10  # the agent waits for 30 s
    agent.go.set()
    asking.join(10)
    assert "the server is shutting down" in str(outcome[0])


def test_pages_for_operators(server):
    _, ports = server
    get = lambda page: urllib.request.urlopen(f"http://127.0.0.1:{ports['openpi']}/{page}", timeout=10).read().decode()  # noqa: E731
    connect(ports).infer({STATE: state(1)})
    assert get("healthz") == "OK\n"
    metrics = get("metrics")
    assert "keystone_requests_total" in metrics
    assert 'keystone_k_bucket{le="8.0"}' in metrics


def test_a_server_without_room_is_ready_and_one_whose_round_hangs_is_not(monkeypatch):
    agent = PointAgent()
    model = make_model(agent=agent)
    with serving("openpi", guard=Guard(max_connections=1), model=model) as (_, ports):
        page, client = f"http://127.0.0.1:{ports['openpi']}/readyz", connect(ports)
        assert urllib.request.urlopen(page, timeout=10).read() == b"ready\n"
        agent.go.clear()
        asking = threading.Thread(target=lambda: client.infer({STATE: state(1)}))
        asking.start()
        assert agent.begun.wait(10)
        assert urllib.request.urlopen(page, timeout=10).read() == b"ready\n"
        monkeypatch.setattr("keystone_robotics.serve.model.STALLED", 0.0)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(page, timeout=10)
        agent.go.set()
        asking.join(20)
        wait_until(lambda: not model.stalled)


def test_a_robot_that_was_forgotten_draws_new_noise_and_its_alarm_is_gone(monkeypatch):
    monkeypatch.setattr("keystone_robotics.serve.model.ROBOTS", 1)
    alarm = Alarm(Calibration("dispersion", "high", "constant", (0.0,), 2, 0.05, 19, spec="core-mean:k=8"))
    model = make_model("core-mean:k=8,seed=5", listeners=[alarm])
    seeds = [round_of(model, name)[0]["seed"] for name in "aba"]
    assert len(set(seeds)) == 3
    assert len(alarm._episodes) == 1


def test_seeds_make_runs_repeatable_and_robots_different():
    with serving("openpi", model=make_model("core-mean:k=8,seed=5")) as (_, ports):
        first = connect(ports).infer({STATE: state(1), "keystone_episode": "a"})["actions"]
        other = connect(ports).infer({STATE: state(1), "keystone_episode": "b"})["actions"]
    with serving("openpi", model=make_model("core-mean:k=8,seed=5")) as (_, ports):
        again = connect(ports).infer({STATE: state(1), "keystone_episode": "a"})["actions"]
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_the_self_check_runs_before_a_port_is_opened():
    class Wrong(FlowPolicy):
        def sample(self, context, noise):  # K wide it does something else
            return super().sample(context, noise) + (len(noise) > 1)

    with pytest.raises(keystone.KeystoneError, match="self-check failed"):
        make_model(agent=PointAgent(Wrong(flow_policy().config).eval()))


def test_a_policy_without_an_observation_to_check_it_with_is_refused():
    class Policy:
        def get_action(self, observation):
            return {}

    with pytest.raises(keystone.KeystoneError, match=r"mine:make gives a Policy without an observation.*\(policy, obs"):
        ServedMessages("mine:make", Policy())


def test_a_policy_with_a_format_of_its_own_is_served_as_it_is():
    class Policy:
        def __init__(self):
            self.model = PointAgent().policy

        def infer(self, observation):
            with torch.no_grad():
                return {
                    "joints": self.model(torch.from_numpy(observation["q"])[None])[0].numpy(),
                    "from": observation["who"],
                }

    policy = Policy()
    policy.sample, policy.encode = policy.model.sample, policy.model.encode
    served = ServedMessages("mine:policy", policy, {"q": state(1), "who": "warm-up"})
    served.policy = policy.model
    model = Model(Replica(served, Spec.parse("core-mean:k=4")))
    model.warm_up()
    with serving("openpi", model=model) as (_, ports):
        reply = connect(ports).infer({"q": state(2), "who": "arm 1"})
    assert (reply["joints"].shape, reply["from"], reply["keystone"]["k"]) == ((6, 2), "arm 1", 4)


def test_draining_answers_what_waits_and_refuses_the_rest():
    agent = PointAgent()
    model = make_model(agent=agent)
    with serving("openpi", model=model) as (service, ports):
        clients = [connect(ports) for _ in range(3)]
        agent.go.clear()
        results = []
        asking = threading.Thread(
            target=lambda: results.extend(in_threads([lambda c=c: c.infer({STATE: state(1)}) for c in clients[:2]]))
        )
        asking.start()
        assert agent.begun.wait(10)
        wait_until(lambda: service.acting == 2)
        stopping = threading.Thread(target=lambda: model.stop(20))
        stopping.start()
        wait_until(lambda: model._ending)
        service.draining = True
        with pytest.raises(RuntimeError, match="the server is shutting down"):
            clients[2].infer({STATE: state(1)})
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{ports['openpi']}/readyz", timeout=10)
        agent.go.set()
        for thread in (asking, stopping):
            thread.join(20)
        assert all(reply["actions"].shape == (6, 2) for reply in results), results


def test_replies_under_way_are_sent_before_connections_are_closed():
    agent = PointAgent()
    replies = []
    with serving("openpi", model=make_model(agent=agent)) as (service, ports):
        clients = [connect(ports) for _ in range(6)]
        agent.go.clear()
        asking = threading.Thread(
            target=lambda: replies.extend(in_threads([lambda c=c: c.infer({STATE: state(1)}) for c in clients]))
        )
        asking.start()
        wait_until(lambda: service.acting == 6)
        threading.Timer(0.2, agent.go.set).start()
    asking.join(20)
    assert [reply["actions"].shape for reply in replies] == [(6, 2)] * 6


def test_a_full_queue_is_a_refusal():
    model = make_model(limits=Limits(max_waiting=1), warm=False)
    model.submit(_ask(RobotId("a")), lambda outcome: None)
    with pytest.raises(Refused, match="1 requests are waiting already"):
        model.submit(_ask(RobotId("b")), lambda outcome: None)


def _ask(robot):
    return Ask(robot, {STATE: state(1)})


def answer_next(model, now):
    batch = model.scheduler.next(now)
    model._answer(batch)
    model.scheduler.finish(batch)
    return batch
