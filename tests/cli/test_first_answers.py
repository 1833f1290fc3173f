"""What needs no policy is answered without the imports that take seconds."""

import json
import subprocess
import sys

HEAVY = ("torch", "numba", "scipy", "matplotlib", "mujoco", "lerobot", "transformers", "ray", "rerun")
#: Arguments, exit code, and what the answer contains.
CASES = [
    (["recipes"], 0, "smolvla"),
    (["recipes", "nonsense"], 2, "no recipe 'nonsense'"),
    (["check", "x", "--rule", "kesytone"], 2, "did you mean 'keystone'?"),
    (["check", "--help"], 0, "--temperature"),
    (["eval", "--arm", "kesytone:k=4"], 2, "did you mean 'keystone'?"),
    (["eval", "--arms", "first", "kesytone:k=4"], 2, "did you mean 'keystone'?"),  # --arm and --arms are the same
    (["eval", "--nonsense"], 2, "keystone eval --help"),
    (["eval", "--policy", "p", "--env", "e", "--episodes", "0"], 2, "episodes=0"),
    (["eval", "--policy", "p"], 2, "no env was given: expected a name (--env NAME)"),
    (["tune", "--policy", "p", "--env", "e", "--latency", "slow"], 2, "--latency slow: expected a multiple"),
    (["tune", "--policy", "p", "--env", "e", "--arm", "fist:steps=1|2"], 2, "did you mean 'first'"),
    (["profile", "x", "--spec", "kesytone"], 2, "did you mean 'keystone'?"),
    (["vla-eval", "serve", "x.py", "--k", "many"], 2, "--k=many: expected a whole number"),
    (["serve", "x", "--protocol", "openpy"], 2, "did you mean 'openpi'?"),
    (["serve", "x", "--host", "0.0.0.0"], 2, "open to the network"),
    (["serve", "x", "--spec", "core-mean:k=4..16"], 2, "give k=16 and --least-k 4"),
    (["serve", "--help"], 0, "--deadline-ms"),
    (["report", "--help"], 0, "--arms"),
    (["view", "--help"], 0, "--headless"),
    (["inspect", "x", "y", "--arm", "kesytone"], 2, "did you mean 'keystone'?"),
    (["eval", "--policy", "metaworld-mixt", "--env", "metaworld"], 2, "did you mean 'metaworld-mixed'"),
    (["eval", "--policy", "metaworld-mixed", "--env", "metawurld"], 2, "did you mean 'metaworld'?"),
    (["tune", "--policy", "metaworld-mixt", "--env", "metaworld"], 2, "did you mean 'metaworld-mixed'"),
    (["eval", "--policy", "metaworld-mixed", "--env", "metaworld", "--tasks", "push-v4"], 2, "did you mean 'push-v3'?"),
    (["eval", "--policy", "metaworld-mixed", "--env", "metaworld?tasks=push-v3"], 2, "metaworld takes no options"),
    (["check", "metaworld-mixt"], 2, "did you mean 'metaworld-mixed'"),
    (["check", "x", "--k", "lots"], 2, "--k=lots: expected a whole number"),
    (["profile", "x", "--k", "lots"], 2, "--k='lots': expected a whole number"),
    (["profile", "x", "--rounds", "0"], 2, "--rounds=0: expected a whole number"),
    (["profile", "no/such/folder"], 2, "there is no policy 'no/such/folder'"),
    (["profile", "runs/mien"], 2, "there is no folder runs/mien, and as a name on the hub: "),
    (["serve", "no/such/folder"], 2, "there is no policy 'no/such/folder'"),
    (["inspect", "no/such/folder", "x"], 2, "there is no policy 'no/such/folder'"),
    (["inspect", "metaworld-mixed", "x"], 2, "there is no folder x: expected a LeRobotDataset"),
    (["view", "no-such-run"], 2, "no-such-run holds no episodes.sqlite"),
    (["monitor", "scores", "no-such-run"], 2, "no-such-run holds no episodes.sqlite"),
    (["monitor", "calibrate", "no-such-run"], 2, "no-such-run holds no episodes.sqlite"),
    (["vla-eval", "serve", "no-such-file.py"], 2, "there is no file no-such-file.py"),
    (["report", "no-such-run"], 2, "no-such-run does not exist"),
    (["compare", "no-such-run"], 2, "no-such-run does not exist"),
    (["--version"], 0, "keystone "),
    ([], 0, "roofline"),
    (["--help"], 0, "roofline"),  # every command, the study's too
    (["evla"], 2, "there is no command 'evla': did you mean 'eval'?"),
]
SCRIPT = f"""
import contextlib, io, json, sys
from keystone_robotics.cli import main

answers, loaded = [], []
for arguments in json.loads(sys.argv[1]):
    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code or 0
    answers.append((code, written.getvalue()))
    loaded.append([name for name in {HEAVY} if name in sys.modules])
    loaded[-1] += [name for name in ("check", "profile") if f"keystone_robotics.cli.{{name}}" in sys.modules]
import keystone_robotics

before = "torch" in sys.modules
keystone_robotics.attach
print(json.dumps([answers, loaded, before, [name for name in {HEAVY} if name in sys.modules]]))
"""


def test_a_command_imports_only_itself_and_what_it_needs():
    cases = json.dumps([arguments for arguments, _, _ in CASES])
    done = subprocess.run([sys.executable, "-c", SCRIPT, cases], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers, loaded, torch_before, with_attach = json.loads(done.stdout)
    for (arguments, code, said), (returned, text) in zip(CASES, answers, strict=True):
        assert (returned, said in text) == (code, True), (arguments, returned, text)
    assert loaded[:3] == [[], [], ["check"]]
    assert loaded[-1] == ["check", "profile"]
    assert not torch_before
    assert with_attach == ["torch"]  # and nothing heavier
