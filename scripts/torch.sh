#!/usr/bin/env bash
# Make .venv-torch: PyTorch and the libraries that the toolkit works with, as a training environment has them. The
# toolkit itself is found through a path file, since it wants an older Python than the rest of this project.
#
# PyTorch comes without hashes: which build it is, differs from machine to machine. Words go to stderr.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-torch
python=$(command -v python3.11 || command -v python3)
[ -x $venv/bin/python ] || "$python" -m venv $venv
pip() { $venv/bin/python -m pip --disable-pip-version-check "$@" >&2; }
pip install --quiet torch==2.13.0
pip install --quiet --no-deps --require-hashes -r requirements/torch.txt
site=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$PWD" >"$site/gpu-failover.pth"
