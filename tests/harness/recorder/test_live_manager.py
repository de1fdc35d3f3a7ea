"""vLLM's own scheduler and manager, recorded by tools/live_manager.py."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.recorder.settings import FOLDER
from attnproof.harness.running.recordings import read_recordings

TOOL = Path(__file__).parents[3] / "tools" / "live_manager.py"
pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed: `tox run -e vllm-0.32` has it"
)
LONGER = """
import runpy, sys
from vllm.v1.core.kv_cache_manager import KVCacheManager
look_up = KVCacheManager.get_computed_blocks
def get_computed_blocks(self, request, *bound):
    blocks, hits, *others = look_up(self, request, *bound)
    if 16 <= hits < request.num_tokens - 16:
        free = self.block_pool.blocks[-1]
        groups = tuple([*group, free] for group in blocks.blocks)
        return self.create_kv_cache_blocks(groups), hits + 16, *others
    return blocks, hits, *others
KVCacheManager.get_computed_blocks = get_computed_blocks
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def recorded(folder, *command):
    environment = {**os.environ, FOLDER: str(folder)}
    subprocess.run([sys.executable, *command], env=environment, check=True, timeout=300)
    _, [outcome], _ = read_recordings([folder], 5, 1, [ALL["kv_manager"]])
    return outcome


@pytest.mark.parametrize(
    "options",
    [(), ("--kind", "window", "--blocks", "40"), ("--drafts", "3", "--asynchronous")],
    ids=["full", "window", "drafts"],
)
def test_the_answers_of_vllms_manager_agree(tmp_path, options):
    outcome = recorded(tmp_path, str(TOOL), *options)
    assert (outcome.result.verdict, outcome.result.cases > 1000) == ("PASS", True)


def test_a_hit_that_is_one_block_too_long_is_found(tmp_path):
    [finding] = recorded(tmp_path, "-c", LONGER, str(TOOL)).findings
    assert finding.diagnosis == "hits are longer than the cached prefix"
