"""Our functions in the classes of vLLM 0.32, judged as a candidate of that interface."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.interfaces import INTERFACES, offered_as
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.task import Settings, examine
from attnproof.harness.running.worker.worker import warm_up

SHIM = """
from attnproof import reference
from attnproof.harness.interfaces import offered_as

globals().update(vars(offered_as("vllm-0.32", reference)))

class BlockTables(reference.BlockTables):
    pass
"""
SETTINGS = Settings(examples=4, examples_db="")
KINDS = frozenset(("wrong-result", "unsafe"))


def judged(interface, path, folder):
    """Return the findings of every operation of the interface, and the operations offered."""
    warm_up()
    candidate = Candidate("shim", str(path), interface=interface, judged=KINDS)
    found, offered = {}, set()
    for name, operation in ALL.items():
        if INTERFACES[interface].has(name, operation.section):
            outcome = examine(operation, candidate, SETTINGS, [], [], folder / f"{name}.ledger")
            found |= {name: outcome.findings} if outcome.findings else {}
            offered |= {name} if outcome.result.cases else set()
    return found, offered


@pytest.mark.slow
@pytest.mark.parametrize("interface", INTERFACES)
def test_the_reference_passes_every_operation_of_each_interface(tmp_path, interface):
    path = tmp_path / "shim.py"
    later = interface == "vllm-0.32"
    path.write_text(SHIM if later else "from attnproof.reference import *\n", encoding="utf-8")
    found, offered = judged(interface, path, tmp_path)
    assert found == {}
    assert len(offered) >= (40 if later else 9)


def test_only_interfaces_with_other_classes_are_offered():
    with pytest.raises(ValueError, match=r"expected 'vllm-0[.]32'"):
        offered_as("sglang-0.5", reference)
