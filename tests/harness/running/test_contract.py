"""Classes of findings: what fails a candidate under each contract, and what is advice."""

from __future__ import annotations

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Batch, Case, Sourced
from attnproof.harness.model.verdict import ENGINE, STRICT, Kind, Verdict
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.more_cases import altered
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.running.worker.worker import warm_up

SPLIT, SLOTS = "split_decodes_and_prefills", "build_slot_mapping"
SLICE = "_make_metadata_with_slice"
HEAD = "import os\nimport numpy as np, torch\nfrom attnproof.reference import {name} as right\n"
BODY = """
def {name}(*args, **kwargs):
    result = right(*args, **kwargs)
{statements}
    return result
"""
UNCHECKED = """
def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    try:
        return right(common_attn_metadata, decode_threshold, require_uniform)
    except (ValueError, TypeError):
        return (0, 0, 0, 0)
"""


@pytest.fixture
def examined(tmp_path):
    """Examine a candidate that is right but for some statements."""
    warm_up()

    def run(statements, judged, operation=SPLIT, body=BODY, corpus=(), **settings):
        lines = "\n".join(f"    {line}" for line in statements.splitlines())
        source = (HEAD + body).format(name=operation, statements=lines)
        path = tmp_path / "mine.py"
        path.write_text(source, encoding="utf-8")
        candidate = Candidate("mine", str(path), interface="vllm-0.11", judged=judged)
        chosen = Settings(
            **{"examples": 20, "examples_db": "", "vary": False, "sparse": True} | settings
        )
        return examine(ALL[operation], candidate, chosen, [], [*corpus], tmp_path / "ledger.jsonl")

    return run


def test_unrefused_input_is_advice_under_the_engine_contract(examined):
    outcome = examined("", ENGINE, body=UNCHECKED)
    assert (outcome.result.verdict, outcome.findings) == ("PASS", [])
    assert outcome.result.advice == len(outcome.advice) == 1
    [advice] = outcome.advice
    assert (advice.kind, advice.diagnosis) == (Kind.CONTRACT, "accepts malformed input")
    assert advice.unreal == "an engine makes no such input"


def test_unrefused_input_fails_under_the_strict_contract(examined):
    outcome = examined("", STRICT, body=UNCHECKED)
    assert outcome.result.verdict == "FAIL"
    assert [finding.kind for finding in outcome.findings] == [Kind.CONTRACT]
    assert outcome.advice == []


@pytest.mark.parametrize(
    ("operation", "statement", "kind"),
    [
        (SPLIT, "result = (np.int64(result[0]), *result[1:])", Kind.TYPE),
        ("slice_query_start_locs", "result = result.long()", Kind.TYPE),
        (
            "slice_query_start_locs",
            "result = torch.nn.Parameter(result, requires_grad=False)",
            Kind.TYPE,
        ),
        (
            SLICE,
            "result.seq_lens = type('Own', (torch.Tensor,), {})(result.seq_lens)",
            Kind.TYPE,
        ),
        (SPLIT, "result = tuple(map(float, result))", Kind.WRONG_RESULT),
        (SPLIT, "if not args[0].num_reqs: result = (1, 0, 0, 0)", Kind.CONTRACT),
        (SPLIT, "if args[0].seq_lens.stride(0) == 2: raise RuntimeError", Kind.CONTRACT),
        (SPLIT, "if args[0].num_reqs > 2: raise RuntimeError", Kind.UNSAFE),
        (SPLIT, "if args[0].num_reqs > 2: args[0].seq_lens[0] += 1", Kind.UNSAFE),
        (
            SPLIT,
            "if args[0].seq_lens.dtype is torch.int64: args[0].seq_lens.add_(1)",
            Kind.CONTRACT,
        ),
        (SPLIT, "if args[0].seq_lens.stride(0) == 2: os.abort()", Kind.CONTRACT),
        (SPLIT, "if not args[0].num_reqs: print('empty')", Kind.CONTRACT),
    ],
)
def test_a_finding_has_a_class(examined, operation, statement, kind):
    strict = examined(statement, STRICT, operation, examples=40, boundaries=False)
    assert [finding.kind for finding in strict.findings] == [kind]
    engine = examined(statement, ENGINE, operation, examples=40, boundaries=False)
    listed = engine.findings if kind in ENGINE else engine.advice
    assert [finding.kind for finding in listed] == [kind]
    assert engine.result.verdict == ("FAIL" if kind in ENGINE else "PASS")


def test_evidence_counts_the_cases_of_each_origin(examined):
    outcome = examined("if args[0].num_reqs > 4: raise RuntimeError", ENGINE)
    [finding] = outcome.findings
    assert set(finding.evidence) == {"fuzz", "boundary"}
    for origin, counts in finding.evidence.items():
        assert 0 <= counts.shown <= counts.cases == outcome.result.origins[origin]
    assert sum(counts.shown for counts in finding.evidence.values()) > 0


def test_two_mistakes_in_one_field_are_two_findings(examined):
    statements = "result.copy_(result.int())\nif len(result) > 4: result[3] = result[2]"
    outcome = examined(statements, ENGINE, SLOTS, examples=200, seed=1)
    diagnoses = {finding.diagnosis for finding in outcome.findings}
    assert len(outcome.findings) == len(diagnoses) == 2
    assert "32-bit overflow" in diagnoses


OUT_OF_PAGES = """
def alloc_decode(seq_lens, last_loc, free_pages, out_indices, page_size):
    try:
        return right(seq_lens, last_loc, free_pages, out_indices, page_size)
    except ValueError as error:
        if "at least" not in str(error):
            raise
"""


def test_a_fresh_process_is_judged_on_cases_of_an_engine_first(examined, monkeypatch):
    def call_once(_worker, case):
        return Verdict((), (), "after other calls" if case.before else "alone")

    monkeypatch.setattr(Worker, "call_once", call_once)
    found = [
        f for seed in range(4) for f in examined("", ENGINE, boundaries=False, seed=seed).findings
    ]
    assert [finding.oracle for finding in found] == ["determinism"] * 4
    assert {finding.unreal for finding in found} == {""}


def test_pages_that_run_out_are_no_malformed_input(examined):
    outcome = examined("", ENGINE, "alloc_decode", OUT_OF_PAGES)
    [finding] = outcome.findings
    assert (finding.kind, finding.unreal) == (Kind.UNSAFE, "")
    assert "free_pages" in finding.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "statement", "diagnosis"),
    [
        (SLICE, "if len(lens): lens[-1] += 1", "off by one token"),
        (SLICE, "if len(lens) > 1 and lens[-1]: lens[-1] = lens[0]", "another request's row"),
        (SLOTS, "if len(result) > 1: result[1:][result[1:] >= 0] += 1", "off by one token"),
    ],
)
def test_larger_cases_decide_between_diagnoses_that_are_alike_in_the_smallest(
    examined, operation, statement, diagnosis
):
    lens = "lens = result.seq_lens\n" if operation == SLICE else ""
    outcome = examined(lens + statement, ENGINE, operation, examples=60)
    assert [finding.diagnosis for finding in outcome.findings] == [diagnosis]


def test_lost_fields_are_one_finding_with_all_their_names(examined):
    statements = "result.dcp_local_seq_lens = result.logits_indices_padded = None"
    outcome = examined(statements, ENGINE, SLICE)
    [finding] = outcome.findings
    assert finding.diagnosis == "lost field"
    assert finding.fields == ("dcp_local_seq_lens", "logits_indices_padded")


def test_the_smallest_case_has_a_token_if_one_of_the_failing_cases_has(examined):
    outcome = examined("result = (*result[:3], result[3] + 1)", STRICT)
    assert {finding.tokens for finding in outcome.findings} == {1}


REAL = make_batch([2, 1], [0, 3], 4)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (REAL, ""),
        (make_batch([2, 1], [0, 3], 4, padded_requests=1, padded_tokens=2), ""),
        (make_batch([], [], 4, padded_requests=1, padded_tokens=1), ""),
        (make_batch([2, 0], [0, 0], 4), ""),
        (make_batch([], [], 4), "no step without a row"),
        (make_batch([], [], 4, padded_tokens=1), "no step without a row"),
        (make_batch([], [], 4, padded_requests=1), "no step without a token"),
        (make_batch([0, 2], [3, 3], 4), "each request of a step a token"),
        (make_batch([2, 0], [3, 3], 4), "each request of a step a token"),
        (make_batch([2], [3], 4, logits_indices=()), "samples a token in each step"),
        (make_batch([2], [3], 4, logits_indices=(2,), padded_tokens=1), "samples no padding"),
        (make_batch([2], [3], 4, strided=True), "no gaps"),
        (make_batch([2], [3], 4, dtype="int64 offsets"), "are int32"),
    ],
)
def test_a_batch_that_no_engine_makes_has_a_reason(batch: Batch, reason: str):
    assert (reason in batch.unreal) if reason else batch.unreal == ""


@pytest.mark.parametrize(
    ("operation", "params", "reason"),
    [
        ("split_attn_metadata", {"cuts": [1]}, ""),
        ("split_attn_metadata", {"cuts": [3]}, "begins no slice in padding"),
        ("split_attn_metadata", {"cuts": [1], "picked": [1, 0]}, "all slices, in order"),
        (SLOTS, {"num_padded": None, "out_spare": None, "columns": 0}, "has a column"),
    ],
)
def test_arguments_that_no_engine_gives_have_a_reason(operation, params, reason):
    case = Case(operation, make_batch([2, 1], [0, 3], 4, padded_tokens=2), params)
    found = ALL[operation].why_unreal(case)
    assert (reason in found) if reason else found == ""


CORRUPTS = """
def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    global wrong
    try:
        result = right(common_attn_metadata, decode_threshold, require_uniform)
    except (ValueError, TypeError):
        wrong = True
        return (0, 0, 0, 0)
    return (*result[:3], result[3] + wrong)
wrong = False
"""


def test_malformed_input_spoils_no_other_case_under_the_engine_contract(examined):
    outcome = examined("", ENGINE, body=CORRUPTS)
    assert (outcome.result.verdict, outcome.findings) == ("PASS", [])
    assert [one.diagnosis for one in outcome.advice] == ["accepts malformed input"]
    assert examined("", STRICT, body=CORRUPTS).result.verdict == "FAIL"


CONVERTS = """
def compute_slot_mapping(profile, slots, seq_id, seq_len, context_len, start_idx, *rest):
    start_idx = int(start_idx) if isinstance(start_idx, np.integer) else start_idx
    return right(profile, slots, seq_id, seq_len, context_len, start_idx, *rest)
"""


def test_an_altered_value_that_is_accepted_is_a_finding_and_runs_again_from_a_corpus(examined):
    name = "compute_slot_mapping"
    [finding] = examined("", STRICT, name, CONVERTS, vary=True, examples=200).findings
    assert (finding.kind, finding.diagnosis) == (Kind.CONTRACT, "accepts malformed input")
    assert "start_idx" in finding.message
    assert "int64" in finding.message
    corpus = [Sourced(finding.case, "corpus", "a file")]
    quick = {"examples": 1, "boundaries": False, "vary": False}
    [again] = examined("", STRICT, name, CONVERTS, corpus=corpus, **quick).findings
    assert again.case == finding.case
    assert examined("", ENGINE, name, CONVERTS, corpus=corpus, **quick).result.advice == 1


@pytest.mark.parametrize(("body", "fewest", "most"), [(UNCHECKED, 1, 1), (BODY, 10, 60)])
def test_altered_values_end_where_malformed_input_is_accepted(
    examined, monkeypatch, body, fewest, most
):
    tried = []

    def noted(*arguments):
        for sourced in altered(*arguments):
            tried.append(sourced)
            yield sourced

    monkeypatch.setattr("attnproof.harness.running.task.run_cases.altered", noted)
    examined("", STRICT, body=body, vary=True)
    assert fewest <= len(tried) <= most


HANGS = """
for value in (*args, *kwargs.values()):
    while isinstance(value, torch.Tensor) and value.is_floating_point():
        pass
"""
HANGING = """
def {name}(*args, **kwargs):
{statements}
    return right(*args, **kwargs)
"""


def test_after_a_hang_no_other_malformed_value_of_the_argument_is_run(examined):
    outcome = examined(HANGS, ENGINE, SLOTS, body=HANGING, timeout_s=1.0, vary=True)
    assert (outcome.result.verdict, outcome.findings) == ("PASS", [])
    [advice] = outcome.advice
    assert (advice.kind, advice.diagnosis) == (Kind.CONTRACT, "does not answer within 1 s")
    assert "; further malformed cases not run: " in advice.message
    assert "of block_table" in advice.message
    assert advice.failed_cases == 1


def test_after_a_hang_that_fails_the_candidate_all_malformed_values_are_run(examined):
    outcome = examined(HANGS, STRICT, SLOTS, body=HANGING, timeout_s=0.5, sparse=False)
    [finding] = outcome.findings
    assert "not run" not in finding.message
    assert finding.failed_cases > 1


@pytest.mark.slow
def test_a_hang_on_good_input_leaves_no_case_out(examined):
    hangs = "while len(args[0]) > 3: pass"
    outcome = examined(hangs, ENGINE, SLOTS, body=HANGING, timeout_s=0.5, examples=5)
    [finding] = outcome.findings
    assert finding.kind == Kind.UNSAFE
    assert finding.failed_cases > 1
