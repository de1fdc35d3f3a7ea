"""Operations that follow from definitions: what their cases are, and what they find.

The definitions are `definitions/operations.py`; candidates are `definitions/right.py`, or that
file with one change.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.memory.arena import UNWRITTEN_PATTERNS
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running import own_operations
from attnproof.harness.running.case_check import problem_of_variant
from attnproof.harness.running.own_operations import VARIABLE, own_names, use_operations
from attnproof.harness.running.task.task import Outcome

FOLDER = Path(__file__).parents[1] / "definitions"
RIGHT = FOLDER / "right.py"
NAMES = ("positions_of", "fill_slots", "chosen", "scaled", "gathered", "Window", "FreeBlocks")

EDGES = (
    "narrow",
    "halves",
    "nothing_but_numbers",
    "twice_size",
    "mirrored",
    "no_result_dims",
    "opt",
    "pool",
    "padded_to",
    "Parameters",
    "less_the_first",
    "page_sums",
    "Slots2D",
)


@pytest.fixture(scope="module", autouse=True)
def registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "")
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(own_operations, "_registered", {})
        use_operations([os.path.relpath(FOLDER / name) for name in ("operations.py", "edges.py")])
        assert own_names() == {*NAMES, *EDGES}
        yield
        for name in (*NAMES, *EDGES):
            del ALL[name]
            delattr(reference, name)


def wrong_results(outcome: Outcome) -> list[str]:
    """Return the findings but those of malformed input, which the candidates do not check."""
    return [
        f"{one.field} {one.diagnosis} {one.message}"
        for one in outcome.findings
        if one.kind != "contract"
    ]


def boundaries(name: str) -> dict[str, Case]:
    return dict(ALL[name].inputs.boundaries())


class TestCases:
    @pytest.mark.parametrize("name", [*NAMES, *EDGES])
    def test_every_boundary_is_accepted_by_its_own_type_and_by_the_reference(self, name):
        operation = ALL[name]
        offered = operation.call.offered({name: getattr(reference, name)}, {}, built_in=True)
        for case in boundaries(name).values():
            assert problem_of_variant(case) == ""
            call = operation.call.prepare(case, 1, "cpu")
            operation.call.outputs(call, operation.call.run(offered, call))

    def test_a_batch_has_the_structure_that_kernels_get_wrong(self):
        names = set(boundaries("positions_of"))
        assert {
            "mixed batch",
            "no requests",
            "padded rows",
            "int64",
            "1025 tokens of a request (K19)",
        } <= names

    def test_optional_arguments_are_absent_in_some_case(self):
        case = boundaries("chosen")["with_mask False"]
        call = ALL["chosen"].call.prepare(case, 0, "cpu")
        assert call.args["mask"] is None

    def test_a_default_is_the_usual_value(self):
        call = ALL["chosen"].call.prepare(boundaries("chosen")["usual arguments"], 0, "cpu")
        assert call.kwargs == {"most": 4, "backwards": False}

    @pytest.mark.parametrize(
        ("layout", "strides", "dtype"),
        [
            ("layout step 2", (6, 2), torch.int32),
            ("layout gap 3", (6, 1), torch.int32),
            ("layout other_dtypes True", (3, 1), torch.int64),
        ],
    )
    def test_layouts(self, layout, strides, dtype):
        call = ALL["gathered"].call.prepare(boundaries("gathered")[layout], 0, "cpu")
        assert call.args["pool"].stride() == strides
        assert call.args["pool"].dtype == torch.int16
        assert call.args["rows"].dtype == dtype

    def test_conditions_and_limits_hold(self):
        for case in boundaries("gathered").values():
            args = ALL["gathered"].call.prepare(case, 0, "cpu").args
            assert bool((args["rows"] % 2 == 0).all())
            assert bool((args["rows"] < args["num_rows"]).all())
            assert len(set(args["order"].tolist())) == len(args["order"])
            assert len(args["rows"]) <= args["steps"] < len(args["rows"]) + 9

    def test_a_written_array_may_be_longer_and_holds_no_stale_entry(self):
        case = boundaries("fill_slots")["spare 3"]
        out = ALL["fill_slots"].call.prepare(case, 0, "cpu").args["out"]
        assert len(out) == case.num_tokens + 3
        assert set(out.tolist()) == {UNWRITTEN_PATTERNS[0]}

    def test_a_class_has_every_method_in_turn(self):
        steps = boundaries("Window")["every method in turn"].params["steps"]
        assert [step["do"] for step in steps] == ["add", "last", "write"] * 3

    def test_steps_take_the_results_of_earlier_ones(self):
        steps = boundaries("FreeBlocks")["walk 3, with results as arguments"].params["steps"]
        freed = [step["ids"] for step in steps if step["do"] == "free"]
        assert len(freed) > 8
        assert max(map(len, freed)) > 1

    def test_rows_that_depend_on_no_other_rows_are_related_to_their_parts(self):
        relations = ALL["scaled"].contract.relations
        assert set(relations.joined) == {"result"}
        assert relations.per_request == {"weights"}
        assert ALL["chosen"].contract.relations is None


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_right_candidate_has_no_finding(examine_candidate, name, seed):
    outcome = examine_candidate(str(RIGHT), name, seed=seed, boundaries=seed == 1, examples=40)
    assert wrong_results(outcome) == []
    assert outcome.result.cases > 30


WRONG = [
    # operation, right, wrong, field of the finding, words of its diagnosis or message
    ("positions_of", "torch.arange(count) +", "1 + torch.arange(count) +", "result", "1"),
    ("positions_of", "[rows]", "[rows].clamp(max=2**20)", "result", "1048"),
    ("fill_slots", "out[:count] = b", "out.zero_(); out[:count] = b", "out", "0"),
    ("fill_slots", ".long()\n", "\n", "out", "overflow"),
    ("chosen", "*, most=4", "*, most=5", "result[0]", ""),
    ("chosen", "values.long() if mask is None else ", "", "result", ""),
    ("chosen", "kept.flip(0) if backwards else ", "", "result[0]", ""),
    ("chosen", "len(kept)", "len(kept[:most])", "result[1]", ""),
    ("scaled", "seq_lens * weights", "(seq_lens.half() * weights.half()).float()", "result", ""),
    ("scaled", "seq_lens * weights", "(seq_lens * weights).bfloat16()", "result", "bfloat16"),
    ("scaled", "seq_lens * weights", "weights.mul_(seq_lens)", "weights", "input"),
    ("gathered", "pool[rows.long()]", "pool[rows.long()].int()", "result", "int32"),
    ("gathered", "pool[rows", "pool.as_strided(pool.shape, (3, 1))[rows", "result", ""),
    ("Window", "[-self.capacity :]", "[-8 :]", "last", ""),
    ("Window", "out[:count] =", "out[count:] = 0; out[:count] =", "out", ""),
    ("Window", "+= len(numbers)", "= len(numbers)", "total", ""),
    ("Window", "return count", "return 3", "write", ""),
    # wrong only for ids of `alloc` that reach the end of the ring
    ("FreeBlocks", "= ids[first:]", "= ids[: len(ids) - first]", "alloc", ""),
    ("FreeBlocks", "ids[:first]", "ids[:first].sort().values", "alloc", ""),
    ("FreeBlocks", "+ self.num_free)", "+ self.num_free - self.num_free // 5)", "alloc", ""),
]


@pytest.mark.parametrize(("name", "right", "wrong", "field", "words"), WRONG)
def test_a_wrong_candidate_is_found(examine_candidate, tmp_path, name, right, wrong, field, words):
    head, separator, text = RIGHT.read_text(encoding="utf-8").partition(
        f"class {name}" if name[0].isupper() else f"def {name}("
    )
    changed = text.replace(right, wrong, 1)
    assert changed != text
    path = tmp_path / "wrong.py"
    path.write_text(head + separator + changed, encoding="utf-8")
    outcome = examine_candidate(str(path), name, examples=20, shrink_seconds=0.2)
    texts = wrong_results(outcome)
    assert any(field in text and words in text for text in texts), texts


def test_a_mistake_that_the_reference_shares_is_found_by_the_parts_of_a_batch(examine_candidate):
    path = FOLDER / "shared_mistake.py"
    outcome = examine_candidate(str(path), "less_the_first", examples=20, shrink_seconds=0.2)
    assert any("does not follow from the batch's parts" in one for one in wrong_results(outcome))


def test_values_follow_from_others():
    calls = [
        ALL["page_sums"].call.prepare(case, 1, "cpu") for case in boundaries("page_sums").values()
    ]
    for call in calls:
        assert call["indptr"].tolist() == [0, *call["lengths"].cumsum(0).tolist()]
    assert {int(call["lengths"].max()) for call in calls if len(call["lengths"])} >= {0, 1, 4}
    assert {call["scale"] for call in calls} == {None, 3, 7}
    assert {len(call["pages"]) - int(call["indptr"][-1]) for call in calls} == {0, 2}


@pytest.mark.parametrize("name", ["pool", "padded_to", "mirrored", "page_sums", "Slots2D"])
def test_the_reference_agrees_with_itself_at_the_edges(examine_candidate, name):
    outcome = examine_candidate("attnproof.reference", name, examples=10)
    assert [one.message for one in outcome.findings] == []


def test_malformed_arguments_are_refused_by_the_reference(examine_candidate):
    """The faults that follow from a definition: each must raise the error that it names."""
    faults = set(ALL["gathered"].inputs.faults)
    assert {
        "rows: another type",
        "rows: float",
        "rows: a dimension more",
        "rows: an entry below 0",
        "num_rows: below 1",
        "order: an entry of 50",
    } <= faults
    for name in NAMES:
        outcome = examine_candidate("attnproof.reference", name, examples=5)
        assert [one.message for one in outcome.findings] == []
