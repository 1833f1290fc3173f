#!/usr/bin/env bash
# The core must run in other projects' environments: Python 3.10 to 3.13 with torch and numpy only.
# For each of these Python versions on this machine: an environment with only these packages, where the docstring examples of
# select, sample and attach run with the standard library's doctest; then the tests of the core, with the tools they need.
# PYTHONS="3.10 3.13" limits the versions.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
export OMP_NUM_THREADS=1

find_python() {  # pyenv's shims refuse versions that are not active, so its own list comes first
  local root version="$1" found
  if command -v pyenv >/dev/null; then
    root=$(pyenv root)
    found=$(ls -d "$root/versions/$version".*/bin/python 2>/dev/null | sort -V | tail -n 1)
    [[ -n $found ]] && { echo "$found"; return; }
  fi
  command -v "python$version" >/dev/null && "python$version" -c "" 2>/dev/null && echo "python$version" || true
}

ran=0
for version in ${PYTHONS:-3.10 3.11 3.12 3.13}; do
  python=$(find_python "$version")
  if [[ -z $python ]]; then
    echo "== Python $version: not on this machine"
    continue
  fi
  env=.venvs/core-$version
  echo "== Python $version: torch and numpy alone"
  .venv/bin/uv venv --quiet --clear --python "$python" "$env"
  .venv/bin/uv pip install --quiet --python "$env/bin/python" --constraint constraints.txt numpy torch
  .venv/bin/uv pip install --quiet --python "$env/bin/python" --no-deps .
  "$env/bin/python" scripts/core_examples.py
  echo "== Python $version: the tests of the core, with the tools they need"
  .venv/bin/uv pip install --quiet --python "$env/bin/python" --constraint constraints.txt pytest hypothesis scipy numba
  "$env/bin/python" -m pytest -q -p no:cacheprovider tests/select tests/sample/test_attach_edges.py tests/sample/test_site.py
  ran=$((ran + 1))
done
[[ $ran -gt 0 ]] || { echo "none of Python 3.10 to 3.13 was found (pyenv install 3.10 …)" >&2; exit 1; }
echo "the core passed on $ran Python versions"
