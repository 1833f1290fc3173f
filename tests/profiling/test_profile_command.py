"""`keystone profile` as a user runs it, with other clients in processes of their own."""

import json
import subprocess
import sys
import threading

import pytest
import torch
from PIL import Image

from keystone_robotics import KeystoneError
from keystone_robotics.cli import main
from keystone_robotics.profiling import Cost, Profile
from keystone_robotics.profiling.neighbours import ANSWER, NeighbourProcesses, serve
from keystone_robotics.report.cost import draw_cost
from toy import save_random_flow


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return str(save_random_flow(tmp_path_factory.mktemp("policies") / "toy"))


def test_the_table_the_json_and_the_figure(policy, tmp_path, capsys, stored, monkeypatch):
    # A few rounds on a busy machine may be as odd as that.
    monkeypatch.setattr("keystone_robotics.profiling.result.IMPLAUSIBLE", 0.0)
    arguments = ["profile", policy, "--k", "2", "4", "--batch", "2", "--out", str(tmp_path), "--rounds"]
    assert main([*arguments, "3"]) == 0
    assert 'not stored for k="auto": 3 rounds of each K, 5 are needed' in capsys.readouterr().out
    assert not list(stored.glob("*.json"))
    assert main([*arguments, "30"]) == 0
    printed = capsys.readouterr().out
    found = Profile.from_dict(json.loads((tmp_path / "profile.json").read_text()))
    assert "batch 2" in printed
    assert f'stored for k="auto", which gives K = {found.best()} from now on, in {stored}' in printed
    assert "Largest K within 5% of K = 1" in printed
    assert [(cost.k, cost.rounds) for cost in found.costs] == [(1, 30), (2, 30), (4, 30)]
    assert all(0 < cost.median <= cost.p99 and cost.peak > 10 for cost in found.costs)
    assert str(found) in (tmp_path / "profile.md").read_text()
    with Image.open(tmp_path / "profile.png") as image:
        assert image.width > 800
    assert (tmp_path / "profile.svg").read_text().count("<svg") == 1
    assert len(list(stored.glob("*.json"))) == 1


def test_steps_are_a_column_and_the_cells_that_cost_no_more_are_named(policy, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("keystone_robotics.profiling.result.IMPLAUSIBLE", 0.0)
    arguments = ["profile", policy, "--k", "4", "--rounds", "5", "--out", str(tmp_path)]
    assert main([*arguments, "--steps", "3"]) == 0
    printed = capsys.readouterr().out
    found = Profile.from_dict(json.loads((tmp_path / "profile.json").read_text()))
    assert [(cost.k, cost.steps) for cost in found.costs] == [(k, steps) for steps in (None, 3) for k in (1, 4)]
    assert f"of the policy as it is (K = 1, {found.steps} steps): " in printed
    assert "| K | steps | median ms |" in (tmp_path / "profile.md").read_text()
    monkeypatch.setenv("KEYSTONE_STEPS", "4")
    assert main(arguments) == 0
    assert {cost["steps"] for cost in json.loads((tmp_path / "profile.json").read_text())["costs"]} == {None, 4}


MODULE = """
import torch
import keystone_robotics as keystone

class Mine:
    def act(self, observation):
        return observation[:, None] + torch.randn(len(observation), 8, 2)

@keystone.factory
def make(batch=3, attach="no"):
    policy = Mine()
    if attach == "yes":
        keystone.attach(policy, k=1, site="act")
    return policy, torch.zeros(int(batch), 2), policy.act
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module in the current directory, for this process and for the other clients' ones."""
    (tmp_path / "robots_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "robots_of_mine"
    sys.modules.pop("robots_of_mine", None)


@pytest.mark.parametrize(("more", "rows"), [([], 3), (["--batch", "2"], 2)])
def test_a_policy_that_a_function_makes(more, rows, module, capsys):
    arguments = ["profile", f"{module}:make?attach=yes", "--k", "2", "--rounds", "2", *more]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert f"{module}:make?attach=yes (site, plain path), batch {rows}" in printed


def test_what_a_function_does_not_take(module, capsys):
    assert main(["profile", f"{module}:make?colour=red"]) == 2
    assert "unexpected keyword argument 'colour'" in capsys.readouterr().err


def test_an_interruption_is_one_line(policy, tmp_path, capsys, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("keystone_robotics.profiling.api.measure", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["profile", policy, "--k", "2", "--out", str(tmp_path)])
    assert stop.value.code == 130
    assert "stopped: nothing was stored" in capsys.readouterr().out


def test_files_that_are_not_of_a_profile_are_not_overwritten(policy, tmp_path, capsys):
    (tmp_path / "profile.md").write_text("mine")
    assert main(["profile", policy, "--k", "4", "--rounds", "2", "--out", str(tmp_path)]) == 2
    assert "choose another folder" in capsys.readouterr().err
    assert (tmp_path / "profile.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k", "1"], "numbers of candidates to compare with K = 1"),
        (["--rounds", "0"], "--rounds=0"),
        (["--steps", "0"], "--steps=0"),
        (["--spec", "mean:steps=2"], "give the numbers with --steps"),
        (["--budget-ms", "-3"], "--budget-ms=-3"),
        (["--device", "nvidia"], "device 'nvidia' cannot be used"),
    ],
)
def test_arguments_that_make_no_sense_are_one_line(arguments, message, policy, tmp_path, capsys):
    assert main(["profile", policy, *arguments, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_other_clients_are_processes_and_k_is_told_with_and_without_them(module, tmp_path, capsys):
    policy = f"{module}:make?attach=yes"
    assert main(["profile", policy, "--k", "4", "--rounds", "2", "--concurrent", "2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "one client alone:" in printed
    assert "2 clients on the device:" in printed
    assert "With 2 clients on the device K " in printed
    found = Profile.from_dict(json.loads((tmp_path / "profile.json").read_text()))
    assert found.clients == (1, 2)
    assert [cost.k for cost in found.of(2)] == [1, 4]


def test_a_client_that_cannot_start_is_an_error_with_its_reason(tmp_path):
    with (
        NeighbourProcesses(1, str(tmp_path / "nowhere"), None, 1, threads=1) as clients,
        pytest.raises(KeystoneError, match="there is no policy"),
    ):
        clients.run(2)


TALKS = """
import runpy
from keystone_robotics.profiling import subject

own = subject.round_of

def talking(*args):
    prepare, act = own(*args)
    return prepare, lambda: (print("a policy that talks " * 100), act())

subject.round_of = talking
runpy.run_module("keystone_robotics.profiling.neighbours", run_name="__main__")
"""


def test_what_a_policy_prints_does_not_fill_the_pipe_of_its_answers(policy):
    """Nobody reads it between two orders: a pipe that is full would have the client wait instead of making rounds."""
    task = json.dumps({"policy": policy, "device": None, "batch": 1, "threads": 1})
    client = subprocess.run([sys.executable, "-c", TALKS, task], input="2\n0\n", capture_output=True, text=True)
    assert client.stdout == f"{ANSWER}ready\n" * 2, client.stderr
    assert "a policy that talks" in client.stderr


class Wire:
    """The orders of a test for one client, each given when the one before is answered, and its answers."""

    def __init__(self, *orders):
        self.orders, self.answers, self._answered = orders, [], threading.Semaphore(1)

    def __iter__(self):
        for order in self.orders:
            self._answered.acquire()
            yield f"{order}\n"
        self._answered.acquire()

    def write(self, text):
        self.answers.append(text.strip())

    def flush(self):
        self._answered.release()


def test_a_client_makes_rounds_as_ordered_and_says_when_memory_ends(policy, monkeypatch):
    def out_of_memory(self, context, noise):
        if len(noise) > 4:
            raise torch.cuda.OutOfMemoryError  # as on a GPU: the engine halves K
        return noise

    monkeypatch.setattr("keystone_study.policies.flow.FlowPolicy.sample", out_of_memory)
    wire = Wire(0, 4, 8, 1, 2)
    serve({"policy": policy, "device": None, "batch": 1, "threads": 1}, wire, wire)
    said = [answer.removeprefix("keystone-neighbour ") for answer in wire.answers]
    assert said == ["ready", "ready", "out of memory", "ready", "ready"]


def test_the_figure_of_several_clients_and_of_memory_that_was_not_measured(tmp_path):
    costs = tuple(
        Cost(k, clients, 9, k * clients, k * clients, 2 * k * clients, 0.5, k - 0.5, 0.1, 0.0, ratio=float(k))
        for clients in (1, 3)
        for k in (1, 4, 8)
    )
    figure = draw_cost(Profile("mine", "site", 1, "cpu", {}, "", costs, "not measured", budget_ms=5.0))
    (left,) = figure.axes
    # by their lines and bars; phases that cannot be seen have no name
    assert [text.get_text() for text in left.texts] == ["encode", "denoise", "99th percentile", "3 clients", "budget"]
    assert left.get_title() == "memory: not measured"
    # under load
    assert [tick.get_text() for tick in left.get_xticklabels() if tick.get_fontweight() == "bold"] == ["1"]
