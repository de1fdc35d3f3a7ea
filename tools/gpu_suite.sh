#!/usr/bin/env bash
# Everything that needs a GPU, in a plain checkout: nothing is installed, nothing fetched.
# Needs torch, numpy, triton, numba, hypothesis, typer, rich and msgspec; uses pytest and
# xformers if they are there. `tools/gpu_suite.sh --help` says the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" tools/gpu_suite.py "$@"
