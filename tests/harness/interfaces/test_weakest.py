"""Contracts that differ by interface: the weakest one that a function may have is judged."""

from __future__ import annotations

import pytest

from attnproof.harness.interfaces.weakest import earlier_form
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.batch.reorder import REORDER
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.running.worker.worker import warm_up

SPLIT = "split_decodes_and_prefills"
BY_REGIONS = """
def reorder_batch_to_split_decodes_and_prefills(input_batch, scheduler_output, decode_threshold=1):
    ids = list(input_batch.req_ids)
    short = [scheduler_output.num_scheduled_tokens[i] <= decode_threshold for i in ids]
    {reads}
    regions = [{region} for row in range(len(ids))]
    wanted, moved = sorted(regions), False
    for place in range(len(ids)):
        if regions[place] != wanted[place]:
            source = max(row for row in range(place, len(ids)) if regions[row] == wanted[place])
            input_batch.swap_states(place, source)
            regions[place], regions[source] = regions[source], regions[place]
            moved = True
    return moved
"""
C, P = (
    "c = input_batch.num_computed_tokens_cpu.tolist()",
    "p = input_batch.num_prompt_tokens.tolist()",
)
FORMS = {
    "vllm-0.10": BY_REGIONS.format(reads="", region="0 if short[row] else 1"),
    "vllm-0.11": BY_REGIONS.format(reads=C, region="0 if short[row] else 1 if c[row] > 0 else 2"),
    "vllm-0.32": BY_REGIONS.format(
        reads=f"{C}; {P}",
        region="3 if c[row] == 0 else 2 if not short[row] else 1 if c[row] < p[row] else 0",
    ),
}
"""The function as vLLM has published it: it reads progress without asking whether it is there."""
SPLITS = {
    "vllm-0.10": "batch, decode_threshold=1",
    "vllm-0.11": "batch, decode_threshold=1, require_uniform=False",
    "": "batch, *options",
}


def candidate_of(source, folder, interface, *, declared=True):
    path = folder / "plugin.py"
    path.write_text(source, encoding="utf-8")
    kinds = frozenset(("wrong-result", "unsafe"))
    return Candidate("plugin", str(path), interface=interface, declared=declared, judged=kinds)


def examined(source, folder, interface, operation=REORDER, *, declared=True):
    warm_up()
    candidate = candidate_of(source, folder, interface, declared=declared)
    settings = Settings(examples=60, examples_db="", vary=False, sparse=True)
    return examine(ALL[operation], candidate, settings, [], [], folder / "ledger")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("interface", ["any", "own"])
def test_each_published_order_passes_where_it_may_be_meant(tmp_path, form, interface):
    outcome = examined(FORMS[form], tmp_path, form if interface == "own" else interface)
    assert outcome.findings == []
    assert outcome.result.cases > 60


@pytest.mark.parametrize("form", FORMS)
def test_a_class_of_an_engine_between_the_interfaces_chooses_no_order(tmp_path, form):
    outcome = examined(FORMS[form], tmp_path, "vllm-0.11", declared=False)
    assert outcome.findings == []


@pytest.mark.parametrize(
    ("form", "declared", "passing"),
    [
        ("vllm-0.10", "vllm-0.11", "any or vllm-0.10"),
        ("vllm-0.10", "vllm-0.32", "any"),
        ("vllm-0.11", "vllm-0.32", "any"),
    ],
)
def test_a_declared_order_is_required_and_the_finding_names_the_others(
    tmp_path, form, declared, passing
):
    outcome = examined(FORMS[form], tmp_path, declared)
    assert outcome.findings
    for finding in outcome.findings:
        assert finding.kind == "wrong-result"
        assert finding.interface.startswith(f"Judged in the interface {declared} ")
        assert f"the case passes with --interface {passing}" in finding.interface


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("vllm-0.11", "1 if c[row] > 0 else 2", "2 if c[row] > 0 else 1"),
        ("vllm-0.32", "1 if c[row] < p[row] else 0", "0 if c[row] < p[row] else 1"),
    ],
)
def test_what_a_function_reads_it_has_to_order_by(tmp_path, form, old, new):
    """A function that knows progress is not excused by the order of an engine that does not."""
    outcome = examined(FORMS[form].replace(old, new), tmp_path, "any")
    assert {finding.kind for finding in outcome.findings} == {"wrong-result"}
    assert {finding.interface for finding in outcome.findings} == {""}


def test_replay_judges_by_the_same_contract(tmp_path):
    warm_up()
    progress = {"computed_lens": [0, 5], "prompt_lens": [9, 5]}
    case = Case(REORDER, None, {"query_lens": [9, 9], "decode_threshold": 1, **progress})
    for interface, fails in (("any", False), ("vllm-0.11", True)):
        candidate = candidate_of(FORMS["vllm-0.10"], tmp_path, interface)
        worker = Worker(candidate, {REORDER: ALL[REORDER]}, timeout_s=20.0, memory_bytes=2**32)
        try:
            assert bool(worker.judge(worker.in_interface(case)).failures) is fails
        finally:
            worker.stop()


@pytest.mark.parametrize("form", SPLITS)
def test_arguments_of_later_engines_are_not_given_to_an_earlier_split(tmp_path, form):
    source = f"""
from attnproof.reference import split_decodes_and_prefills as right
def split_decodes_and_prefills({SPLITS[form]}):
    return right({SPLITS[form].replace("=1", "").replace("=False", "")})
"""
    space: dict[str, object] = {}
    exec(source, space)
    assert earlier_form(SPLIT, space[SPLIT]) == form
    for interface in ("any", form or "vllm-0.32"):
        if interface != "vllm-0.32":
            assert examined(source, tmp_path, interface, SPLIT).findings == []
    if form == "vllm-0.10":
        (finding,) = examined(source, tmp_path, "vllm-0.11", SPLIT).findings
        assert finding.diagnosis == "raises TypeError on good input"
        assert "passes with --interface any or vllm-0.10." in finding.interface
