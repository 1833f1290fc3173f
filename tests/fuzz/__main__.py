"""``python -m fuzz``: see the package."""

import argparse
import warnings

from fuzz import TARGETS, run

parser = argparse.ArgumentParser(prog="python -m fuzz")
parser.add_argument("--seconds", type=float, default=60.0, help="how long")
parser.add_argument("--count", type=int, default=10**9, help="cases of each target")
parser.add_argument("--seed", type=int, default=0, help="of the first case")
parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="targets")
given = parser.parse_args()
warnings.simplefilter("ignore")
for name, (cases, things) in run(
    {name: TARGETS[name] for name in given.only}, given.seconds, given.count, given.seed
).items():
    print(f"{name:12} {cases:8} cases  {things:10} tried")
