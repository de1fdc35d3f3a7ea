"""The adapters on the installed SGLang and FlashInfer, which the tox environments have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from attnproof.harness.running.candidates import resolve, version_of

INSTALLED = {name: find_spec(name) is not None for name in ("sglang", "flashinfer")}
needs_sglang = pytest.mark.skipif(
    not INSTALLED["sglang"], reason="SGLang is not installed: `tox run -e sglang-0.5` has it"
)
needs_flashinfer = pytest.mark.skipif(
    not INSTALLED["flashinfer"],
    reason="FlashInfer is not installed: `tox run -e flashinfer-0.7` has it",
)


def run(code: str, lane: str) -> object:
    """Return the JSON that code prints in a process of the lane: Triton reads it at its import."""
    env = os.environ | {"TRITON_INTERPRET": "1" if lane == "interpreter" else "0"}
    made = subprocess.run(
        [sys.executable, "-c", f"import json, torch\n{code}"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(made.stdout)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("sglang", marks=needs_sglang),
        pytest.param("flashinfer", marks=needs_flashinfer),
    ],
)
def test_the_release_is_that_of_the_package(name):
    [candidate] = resolve([name], "auto")
    code = f"from attnproof.harness.adapters import {name}\nprint(json.dumps({name}.VERSION))"
    assert run(code, candidate.lane) == version_of(candidate)


@needs_sglang
@pytest.mark.parametrize(("lane", "offered"), [("cpu", 8), ("interpreter", 6)])
def test_all_operations_of_a_lane_are_found(lane, offered):
    code = (
        "from attnproof.harness.adapters import sglang\n"
        "from attnproof.harness.operations import ALL\n"
        "print(json.dumps(sum(hasattr(sglang, name) for name in ALL)))"
    )
    assert run(code, lane) == offered


@needs_sglang
@pytest.mark.parametrize("lane", ["cpu", "interpreter"])
def test_the_specifications_example_of_slots(lane):
    code = (
        "from attnproof.harness.adapters.sglang import alloc_extend\n"
        "out = torch.zeros(6, dtype=torch.int64)\n"
        "given = ([2, 4], [7, 5], [21, 15], [9, 3])\n"
        "alloc_extend(*map(torch.tensor, given), out, 4)\n"
        "print(json.dumps(out.tolist()))"
    )
    assert run(code, lane) == [22, 23, 36, 37, 38, 12]


@needs_sglang
def test_importing_the_adapter_leaves_sglang_alone():
    code = (
        "import sys\nfrom attnproof.harness.adapters import sglang\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('sglang')]))"
    )
    assert run(code, "cpu") == []


@needs_flashinfer
def test_given_positions_keep_what_stands_behind_the_last_token():
    """Not judged, because the specification has no buffers (docs/sglang.md)."""
    code = (
        "from attnproof.harness.adapters.single_engines import module_of\n"
        "import attnproof.harness.adapters.flashinfer\n"
        "page = module_of('FlashInfer', 'flashinfer.page')\n"
        "offsets, lens = torch.tensor([0, 1]).int(), torch.tensor([3]).int()\n"
        "given = (torch.full((3,), 7).int(), torch.full((3,), 7).int())\n"
        "made = page.get_batch_indices_positions(offsets, lens, 3, *given)\n"
        "print(json.dumps([one.tolist() for one in made]))"
    )
    assert run(code, "interpreter") == [[0, -1, -1], [2, 7, 7]]
