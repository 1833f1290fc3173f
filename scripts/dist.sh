#!/usr/bin/env bash
# Builds the sdists and wheels of all distributions in dist/ and checks their metadata. With TAG=v0.2.0, for a release: the
# tag must be the version, and the placeholder of the repository's address must have been replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ -x .venv/bin/uv ]]; then uv=$PWD/.venv/bin/uv; else uv=$(command -v uv) || { echo "dist: uv was not found" >&2; exit 1; }; fi
version=$(sed -nE 's/^__version__ = "(.*)"/\1/p' src/keystone_robotics/_version.py)
if [[ -n ${TAG:-} ]]; then
  [[ $TAG == "v$version" ]] || { echo "dist: the tag is $TAG, the version $version" >&2; exit 1; }
  if git grep -lE 'github(usercontent)?\.com/OWNER/' -- ':!CONTRIBUTING.md' ':!scripts'; then
    echo "dist: the files above have the placeholder github.com/OWNER: replace it by the repository's address" >&2; exit 1
  fi
  if grep -l 'is not on PyPI yet' README.md docs/*.md; then
    echo "dist: the files above say that the version is not on PyPI yet: PyPI would show that" >&2; exit 1
  fi
fi
rm -rf dist
for project in . study packages/*/; do "$uv" build --quiet --out-dir dist "$project"; done
rm -f dist/.gitignore
"$uv" tool run --quiet twine==7.0.0 check --strict dist/*
