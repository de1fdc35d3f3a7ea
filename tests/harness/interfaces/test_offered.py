"""Our functions in the classes of vLLM 0.32, judged as a candidate of that interface."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.interfaces import INTERFACES, offered_as
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
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


def is_other(interface, operation):
    """True if the interface has the operation and changes its function or one of its cases."""
    name = operation.name
    if not interface.has(name, operation.section):
        return False
    function = getattr(reference, name, None)
    cases = (case for _, case in operation.inputs.boundaries())
    changed = interface.adapt(name, function) is not function
    return changed or any(interface.fit(case) != case for case in cases)


def judged(interface, path, folder):
    """Return the findings of the operations that the interface changes, and those offered."""
    warm_up()
    candidate = Candidate("shim", str(path), interface=interface, judged=KINDS)
    found, offered = {}, set()
    for name, operation in ALL.items():
        if is_other(INTERFACES[interface], operation):
            outcome = examine(operation, candidate, SETTINGS, [], [], folder / f"{name}.ledger")
            found |= {name: outcome.findings} if outcome.findings else {}
            offered |= {name} if outcome.result.cases else set()
    return found, offered


@pytest.mark.slow
@pytest.mark.parametrize("interface", INTERFACES)
def test_the_reference_passes_what_an_interface_changes(tmp_path, interface):
    path = tmp_path / "shim.py"
    other_classes = interface == "vllm-0.32"
    source = SHIM if other_classes else "from attnproof.reference import *\n"
    path.write_text(source, encoding="utf-8")
    found, offered = judged(interface, path, tmp_path)
    assert found == {}
    assert len(offered) >= (40 if other_classes else 1)


def test_only_interfaces_with_other_classes_are_offered():
    with pytest.raises(ValueError, match=r"expected 'vllm-0[.]32'"):
        offered_as("sglang-0.5", reference)
