#!/usr/bin/env bash
# Builds the site in build/site with the tools of docs/requirements.txt, in an environment of its own (.venvs/docs).
# A broken link, reference or anchor, a page that the navigation does not list, or a search box without results fails.
# SERVE=1 serves it while you write.
set -euo pipefail
cd "$(dirname "$0")/.."

env=.venvs/docs
state=$(cksum docs/requirements.txt)
if [[ ! -f $env/.ready || $(<"$env/.ready") != "$state" ]]; then
  echo "docs: installing mkdocs in $env"
  if [[ -x .venv/bin/uv ]]; then uv=.venv/bin/uv; else uv=$(command -v uv || true); fi
  if [[ -n $uv ]]; then
    "$uv" venv --quiet --clear --python "$(<.python-version)" "$env"
    "$uv" pip install --quiet --python "$env/bin/python" -r docs/requirements.txt
  else
    "python$(<.python-version)" -m venv --clear "$env"
    "$env/bin/python" -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
  fi
  echo "$state" >"$env/.ready"
fi
export PYTHONPATH=src:study/src NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true
if [[ -n ${SERVE:-} ]]; then exec "$env/bin/mkdocs" serve --strict; fi
"$env/bin/mkdocs" build --strict
"$env/bin/python" scripts/docs_search.py build/site real-time
echo "wrote build/site/index.html (SERVE=1 serves it; without a server, the search box stays empty)"
