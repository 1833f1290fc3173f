"""Real `vla-eval serve`, real `vla-eval run` over the websocket, real results, read by `keystone compare`."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import anyio
import numpy as np
import pytest
import yaml
from reach_server import ReachServer
from vla_eval.connection import Connection
from vla_eval.model_servers.serve import serve_async

from keystone_robotics.cli import main
from keystone_robotics.integrations.vla_eval import wrap_server

HERE = Path(__file__).parent
KEYSTONE = [sys.executable, "-c", "import sys; from keystone_robotics.cli import main; sys.exit(main())"]
VLA_EVAL = [sys.executable, "-m", "vla_eval.cli.main"]
EPISODES = 12


async def clients(server, number, steps):
    """Every answer that some clients get, each in an episode of its own, all at the same time."""
    answers = {}

    async def client(url, episode):
        async with Connection(url) as connection:
            await connection.start_episode({"task": {"name": "reach", "episode_idx": episode}})
            state = np.array([-1.0, 0.1 * episode], np.float32)
            answers[episode] = [await connection.act({"state": state}) for _ in range(steps)]
            await connection.end_episode({})

    async with anyio.create_task_group() as serving:
        port = await serving.start(serve_async, server, "127.0.0.1", 0)
        async with anyio.create_task_group() as playing:
            for episode in range(number):
                playing.start_soon(client, f"ws://127.0.0.1:{port}", episode)
        serving.cancel_scope.cancel()
    return answers


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_sessions_are_answered_in_batches_and_as_if_they_were_alone(tmp_path, chunk_size):
    def play(episodes, batch):
        path = tmp_path / f"{batch}.jsonl"
        options = {"k": 8, "seed": 0, "space": {"dims": 2, "steps": 4}, "rounds": str(path)}
        server = wrap_server(ReachServer)(chunk_size=chunk_size, max_batch_size=batch, keystone=options)
        answers = anyio.run(clients, server, episodes, 12)
        return server, answers, [json.loads(line) for line in path.read_text().splitlines()]

    server, together, lines = play(3, batch=3)
    assert max(server.batches) > 1
    assert sum(len(line["index"]) for line in lines) == sum(server.batches) == 3 * (12 if chunk_size is None else 3)
    assert [len(line["episodes"]) for line in lines] == server.batches
    _, alone, _ = play(3, batch=1)
    for episode, answers in together.items():
        for answer, single in zip(answers, alone[episode], strict=True):
            np.testing.assert_allclose(answer["actions"], single["actions"], atol=1e-6)
            # vla-eval sends whole answers on, and of chunks that it cuts itself the actions alone
            assert answer.keys() == ({"actions", "keystone"} if chunk_size is None else {"actions"})


@pytest.fixture
def port():
    """One that nobody else is given until the server, which may share it, has it."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.fixture
def server(tmp_path, port):
    """`keystone vla-eval serve` with K = 1, a block in the file and options over it; its URL."""
    block = {"space": {"dims": 2}, "rule": "medoid"}
    args = {"chunk_size": 4, "max_batch_size": 3, "max_wait_time": 0.005, "port": port, "keystone": block}
    # A project that cannot be installed lies around the current directory: it is none of the server's business.
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "around"\nversion = "0"\ndependencies = ["not-there"]\n'
    )
    (tmp_path / "server.yaml").write_text(yaml.dump({"script": str(HERE / "reach_server.py"), "args": args}))
    command = [*KEYSTONE, "vla-eval", "serve", "server.yaml", "-k", "1", "--rule", "keystone", "--seed", "0"]
    log = tmp_path / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--rounds", "rounds.jsonl"],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=file,
            stderr=file,
            start_new_session=True,  # vla-eval starts uv, and uv the server: all of them end together
        )
    try:
        deadline = time.monotonic() + 300  # the selector may have to be compiled first
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, which the test has told already
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(folder):
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "XDG_CACHE_HOME": str(folder / "cache")}


def test_three_shards_at_two_k_and_what_compare_says(server, tmp_path):
    benchmark = {"benchmark": "reach_benchmark:Reach", "episodes_per_task": EPISODES, "params": {"seed": 0}}
    run = {"server": {"url": f"ws://{server}"}, "render": "cpu", "benchmarks": [benchmark]}
    (tmp_path / "run.yaml").write_text(yaml.dump(run))
    for k in (1, 16):
        with urllib.request.urlopen(f"http://{server}/config?keystone_k={k}") as answer:
            assert json.load(answer)["applied"] == {"keystone_k": k}
        command = [
            *VLA_EVAL,
            "run",
            "--no-docker",
            "--config",
            "run.yaml",
            "--output-dir",
            f"k{k}",
            "--eval-id",
            f"e{k}",
        ]
        shards = [
            subprocess.Popen(
                [*command, "--shard-id", str(shard), "--num-shards", "3"],
                cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for shard in range(3)
        ]  # fmt: skip
        for shard in shards:
            output, _ = shard.communicate(timeout=240)
            assert shard.returncode == 0, output
        export = [*VLA_EVAL, "export", f"k{k}/recording-e{k}.sqlite"]
        subprocess.run(export, cwd=tmp_path, env=environment(tmp_path), check=True, capture_output=True)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server}/config?keystone_k=many")
    assert refused.value.code == 422
    assert "expected a whole number from 1 to 1024" in refused.value.read().decode()

    assert (
        main(["compare", str(tmp_path / "k1"), str(tmp_path / "k16"), "--json", str(tmp_path / "compared.json")]) == 0
    )
    (compared,) = json.loads((tmp_path / "compared.json").read_text())["comparisons"]
    assert compared["pairing"]["by"] == "seed"
    rows = {task["task"]: task for task in compared["tasks"]}
    assert rows.keys() == {"reach", "reach-far"}
    assert all(row[arm]["episodes"] == EPISODES for row in rows.values() for arm in ("a", "b")), rows
    assert compared["improvement"]

    results = {k: json.loads((tmp_path / f"k{k}" / "Reach_aggregate.json").read_text()) for k in (1, 16)}
    assert results[1]["mean_success"] < 0.8 < results[16]["mean_success"]
    assert results[1]["server_info"]["model_server"] == "KeyStoneReachServer"
    assert results[1]["num_errors"] == results[16]["num_errors"] == 0
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert {line["rule"] for line in lines} == {"keystone"}
    for k in (1, 16):
        told = {(whose["task"], whose["episode"]) for line in lines if line["k"] == k for whose in line["episodes"]}
        assert told == {(task, episode) for task in rows for episode in range(EPISODES)}
