#!/usr/bin/env bash
# The newest LeRobot and vla-eval from PyPI, whatever pyproject.toml allows: does the self-check still pass?
# An environment of its own (.venvs/newest); the output is also in out/newest.log, for scripts/issue_text.py.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
env=.venvs/newest
mkdir -p out
.venv/bin/uv venv --quiet --clear --python "$(<.python-version)" "$env"
# Overrides replace every range of these packages; the extras are those of the `dev` extra.
extras=$(sed -nE 's/^ *"lerobot\[([a-z0-9_,]+)\]==.*/\1/p' pyproject.toml)
overrides=$(printf '%s\n' "numpy>=1.24" "lerobot[$extras]>=0.6" "vla-eval>=0.8")
.venv/bin/uv pip install --quiet --upgrade --python "$env/bin/python" --override <(echo "$overrides") \
  -e ".[dev]" -e ./study -e ./packages/lerobot_policy_keystone
{
  .venv/bin/uv pip list --python "$env/bin/python" 2>/dev/null | grep -iE '^(lerobot|vla-eval|torch|transformers|diffusers) '
  "$env/bin/python" -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder tests/lerobot tests/sample tests/harness tests/policies tests/docs
} 2>&1 | tee out/newest.log
