#!/usr/bin/env bash
# Run everything that needs a GPU in a plain checkout, without installing or downloading.
# Needs torch, numpy, triton, numba, hypothesis, typer, rich and msgspec; uses pytest and
# xformers if they are installed. See `tools/gpu_suite.sh --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" tools/gpu_suite.py "$@"
