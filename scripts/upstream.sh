#!/usr/bin/env bash
# Tests the adapters on another project's own code, from nothing: `scripts/upstream.sh CogACT`. A name is a folder of
# upstream/checkouts.py, which says the commit and the packages; `scripts/upstream.sh CogACT newest` takes the newest commit.
# The checkout goes to $KEYSTONE_UPSTREAM or .venvs/checkouts, and stays as it is if it is there; the newest one to
# .venvs/checkouts-newest, whatever was there; the environment, made anew, to .venvs/upstream-NAME. The output is also in
# out/newest.log, for scripts/issue_text.py.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p out
exec > >(tee out/newest.log) 2>&1
name=${1:?which project? see upstream/checkouts.py}
export KEYSTONE_UPSTREAM=${KEYSTONE_UPSTREAM:-$PWD/.venvs/checkouts} GIT_LFS_SKIP_SMUDGE=1
described=$(python3 upstream/checkouts.py "$name")
{ read -r repository; read -r commit; read -r tests; read -r packages; } <<<"$described"
uv=$(command -v .venv/bin/uv uv | head -n 1) || { echo "uv was not found: pip install uv, or make setup"; exit 1; }

if [[ ${2:-} == newest ]]; then
  KEYSTONE_UPSTREAM=$PWD/.venvs/checkouts-newest # never somebody's own checkout
  rm -rf "${KEYSTONE_UPSTREAM:?}/$name"
  commit=HEAD
fi
folder=$KEYSTONE_UPSTREAM/$name
if [[ ! -d $folder ]]; then
  mkdir -p "$KEYSTONE_UPSTREAM"
  partial=$(mktemp -d "$KEYSTONE_UPSTREAM/.$name.XXXX") # a folder of the name is a whole checkout
  trap 'rm -rf "$partial"' EXIT
  git init --quiet "$partial"
  git -C "$partial" fetch --quiet --depth 1 "$repository" "$commit"
  git -C "$partial" checkout --quiet FETCH_HEAD
  mv "$partial" "$folder"
fi
echo "$name $(git -C "$folder" rev-parse --short=7 HEAD)"

env=$PWD/.venvs/upstream-$name
"$uv" venv --quiet --clear --python "$(<.python-version)" "$env"
# torch as everywhere in this repository; other packages of constraints.txt need another transformers
"$uv" pip install --quiet --no-sources --python "$env/bin/python" --constraint <(grep -E '^torch(vision)?==' constraints.txt) \
  -e . pytest ${packages//'{folder}'/$folder}
if [[ $name == openpi ]]; then # openpi's own instruction; not into the files that uv shares among environments
  cp -r --remove-destination "$folder"/src/openpi/models_pytorch/transformers_replace/* \
    "$env"/lib/python*/site-packages/transformers/
fi
make --no-print-directory test-upstream UPSTREAM_PYTHON="$env/bin/python" TESTS="upstream/$tests.py"
