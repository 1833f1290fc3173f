#!/usr/bin/env bash
# Another project's own code at its newest commit: `scripts/test_upstream_newest.sh openpi`. A name is a folder of
# upstream/checkouts.py. The output is also in out/newest.log, for scripts/issue_text.py.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?which project? see upstream/checkouts.py}
case $name in
  Isaac-GR00T-N1.7) tests=upstream/test_isaac_groot_n1d7.py ;;
  starVLA) tests=upstream/test_starvla.py ;;
  X-VLA) tests=upstream/test_x_vla.py ;;
  FastWAM) tests=upstream/test_fast_wam.py ;;
  openpi) tests=upstream/test_openpi.py ;;
  *) echo "no newest version of $name: expected Isaac-GR00T-N1.7, starVLA, X-VLA, FastWAM or openpi" >&2; exit 2 ;;
esac
scripts/setup.sh
export KEYSTONE_UPSTREAM=$PWD/.venvs/checkouts GIT_LFS_SKIP_SMUDGE=1
checkout=$KEYSTONE_UPSTREAM/$name
repository=$(PYTHONPATH=upstream .venv/bin/python -c "import checkouts; print(checkouts.CHECKOUTS['$name'][0])")
rm -rf "$checkout"
git clone --quiet --depth 1 "$repository" "$checkout"
env=$PWD/.venvs/upstream-$name
if [[ $name == openpi ]]; then # a uv project with its own lock file
  (cd "$checkout" && UV_PROJECT_ENVIRONMENT=$env "$OLDPWD/.venv/bin/uv" sync --quiet)
  .venv/bin/uv pip install --quiet --python "$env/bin/python" pytest websockets -e .
else # what their modules import beside what KeyStone's own tests need
  .venv/bin/uv venv --quiet --clear --python "$(<.python-version)" "$env"
  .venv/bin/uv pip install --quiet --python "$env/bin/python" -e . pytest hypothesis scipy torchvision \
    transformers==4.57.3 diffusers accelerate peft timm einops albumentations==1.4.18 decord dm-tree fastapi imageio \
    json-numpy lmdb msgpack-numpy numpydantic omegaconf opencv-python-headless pandas qwen-vl-utils scikit-image tree uvicorn
fi
mkdir -p out
{
  echo "$name $(git -C "$checkout" rev-parse --short=7 HEAD)"
  make --no-print-directory test-upstream UPSTREAM_PYTHON="$env/bin/python" TESTS="$tests"
} 2>&1 | tee out/newest.log
