#!/usr/bin/env bash
# Tests recordings with the oldest and the newest supported rerun-sdk, each in an environment on top of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
base="$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
for version in 0.24 0.41; do
  folder=".venvs/rerun-$version"
  if [ ! -x "$folder/bin/python" ]; then
    .venv/bin/python -m venv "$folder"
    # addsitedir, because the .pth files of editable packages in it must be read too
    echo "import site; site.addsitedir('$base')" > "$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_base.pth"
  fi
  "$folder/bin/python" -m pip install --quiet --no-deps "rerun-sdk==$version.*"
  "$folder/bin/python" -m pytest -p no:cacheprovider tests/view
done
