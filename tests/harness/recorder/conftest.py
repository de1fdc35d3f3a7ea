"""A stand-in for vLLM 0.32, and a recorder of its steps."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attnproof.harness.recorder.recorder import Recorder
from attnproof.harness.recorder.settings import Settings
from attnproof.harness.recorder.vllm import hook_engine

FAKE = Path(__file__).parent / "fake"


def _engine_modules():
    return {n: m for n, m in sys.modules.items() if n == "vllm" or n.startswith("vllm.")}


@pytest.fixture
def engine(monkeypatch):
    """Let the stand-in be imported as vllm, anew for each test."""
    real = _engine_modules()
    for name in real:
        del sys.modules[name]
    monkeypatch.syspath_prepend(FAKE)
    finders = list(sys.meta_path)

    def runner(**options):
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        return GPUModelRunner(**options)

    yield runner
    sys.meta_path[:] = finders
    for name in _engine_modules():
        del sys.modules[name]
    sys.modules.update(real)


@pytest.fixture
def record(engine, tmp_path):
    """Run steps of an engine that is hooked; return the recorder, the folder and the runner."""
    recorders = []

    def run(steps=6, *, sample=1, limit=0, drafting=False, prepare=None, **options):
        recorder = Recorder(Settings(tmp_path / "recording", sample, limit))
        recorders.append(recorder)
        hook_engine(recorder)
        runner = engine(**options)
        runner.drafting = drafting
        if prepare is not None:
            prepare(runner, recorder)
        for step in range(steps):
            runner.execute_model(runner.scheduled(step))
        recorder.stop("exit")
        return SimpleNamespace(recorder=recorder, folder=tmp_path / "recording", runner=runner)

    yield run
    for recorder in recorders:
        recorder.stop("exit")
