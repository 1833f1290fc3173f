#!/usr/bin/env bash
# Creates .venv with all packages of this repository and their dependencies, at the versions in constraints.txt.
# Does nothing if .venv was created from the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=$(<.python-version)
state=$(cat pyproject.toml constraints.txt packages/*/pyproject.toml study/pyproject.toml scripts/setup.sh 2>/dev/null | cksum)
stamp=.venv/.ready
if [[ -f $stamp && $(<"$stamp") == "$state" ]] && .venv/bin/python -c "" 2>/dev/null; then
  exit 0
fi

fail() { printf '\nset-up failed: %s\n' "$1" >&2; exit 1; }

find_python() {
  local candidate
  for candidate in "python$wanted" python3 python; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$wanted')" 2>/dev/null; then
      echo "$candidate"; return
    fi
  done
}

if [[ ! -x .venv/bin/python ]]; then
  python=$(find_python)
  if [[ -n $python ]]; then
    echo "set-up: creating .venv with $("$python" --version)"
    "$python" -m venv .venv || fail "could not create a virtual environment; on Debian and Ubuntu: apt install python$wanted-venv"
  elif command -v uv >/dev/null; then
    echo "set-up: creating .venv with uv (Python $wanted)"
    uv venv --seed --python "$wanted" .venv || fail "uv could not provide Python $wanted"
  else
    fail "Python $wanted was not found. Install it (pyenv install $wanted, apt install python$wanted, or uv) and run this again"
  fi
fi
echo "set-up: installing uv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check "$(grep '^uv==' constraints.txt)" \
  || fail "pip could not install uv; is a package index reachable?"
echo "set-up: installing keystone and its test dependencies (about 6 GB the first time, a minute or two)"
packages=(-e ".[dev]" -e ./study)
for package in packages/*/; do [[ -f $package/pyproject.toml ]] && packages+=(-e "$package"); done
# openpi-client requires numpy < 2, which conflicts with LeRobot; it works with numpy 2 (tests/openpi_policy).
.venv/bin/uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --override <(echo "numpy>=1.24") "${packages[@]}" \
  || fail "the packages above could not be installed; run 'make clean' and try again, or see constraints.txt"
# tests/report opens pages in a browser, and is skipped where there is none
browser() { command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; }
if ! browser && [[ $EUID == 0 ]] && grep -qs '^ID=debian' /etc/os-release; then
  echo "set-up: installing Debian's chromium for the tests of pages"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; } >/dev/null 2>&1 || true
fi
if ! browser; then
  echo "set-up: installing Playwright's chromium for the tests of pages"
  .venv/bin/playwright install --only-shell chromium >/dev/null 2>&1 \
    || echo "set-up: no Chromium could be installed: tests of pages will be skipped" >&2
fi
echo "$state" >"$stamp"
echo "set-up: done"
