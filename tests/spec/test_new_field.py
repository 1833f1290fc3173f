"""A field that is added to `Spec` appears by itself wherever options are given."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("new_field.py")


def test_one_line_makes_an_option_of_every_command_and_file():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == {
        "text": "keystone:k=16,steps_of_field=3",
        "parsed": 3,
        "mapping": 3,
        "environment": 3,
        "vla-eval block": 3,
        "lerobot": 3,
        "lerobot python": 3,
        "lerobot help": True,
        "flags": {"check": True, "profile": True, "serve": True, "vla-eval serve": True},
        "wrong": "KeystoneError('KEYSTONE_STEPS_OF_FIELD=0: expected a whole number, 1 or more')",
    }
