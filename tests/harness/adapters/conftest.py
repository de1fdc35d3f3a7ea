"""The adapter with a stand-in for vLLM, so that its tests need no vLLM."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.running.candidates import version_of

RELEASES = Path(__file__).parent / "releases"
ADAPTER = "attnproof.harness.adapters.vllm"


def _is_of_vllm(name: str) -> bool:
    return name.partition(".")[0] == "vllm" or name.startswith(ADAPTER)


def _forget() -> dict[str, object]:
    """Remove vLLM and its adapters from the imported modules; return those."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _is_of_vllm(name)}


@pytest.fixture
def nothing_imported(monkeypatch):
    """Remove vLLM and the adapter from the imported modules; restore them afterwards."""
    before = _forget()
    version_of.cache_clear()
    package = importlib.import_module("attnproof.harness.adapters")
    monkeypatch.setattr(package, "vllm", None, raising=False)  # an import sets it
    yield
    _forget()
    version_of.cache_clear()
    sys.modules.update(before)


@pytest.fixture
def beside(nothing_imported, monkeypatch):
    """Import the adapter with the stand-in for a release as the installed vLLM."""

    def adapter(release: str):
        path = RELEASES / release
        assert path.is_dir(), f"no stand-in for vLLM {release}"
        monkeypatch.syspath_prepend(path)
        return importlib.import_module(ADAPTER)

    return adapter


@pytest.fixture
def part():
    """Return a module of the adapter that was imported last."""
    return lambda name: sys.modules[f"{ADAPTER}.{name}"]


@pytest.fixture
def batch():
    """Our metadata of three requests, without any default value."""
    extras = {"causal": False, "logits_indices": (0, 3, 4, 6), "encoder_seq_lens": (5, 6, 7)}
    made, _arena = lay_out(make_batch([1, 4, 2], [6, 0, 3], 4, **extras))
    return made


@pytest.fixture
def importing_adapter():
    """Return a function that imports the adapter, with the vLLM that is installed then."""
    return lambda: importlib.import_module(ADAPTER)
