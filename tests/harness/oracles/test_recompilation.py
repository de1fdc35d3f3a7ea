"""Kernels that an engine's later steps compile again, as the interpreter's lane shows them."""

from __future__ import annotations

import json

import msgspec
import pytest

from attnproof.harness.model.verdict import Failure
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import recompilation
from attnproof.harness.oracles.recompilation import FIRST_STEPS, Argument, Version
from attnproof.harness.running.case_check import problem_of

NAME = "compute_token_to_req_indices"
PLAIN = "@triton.jit"
CANDIDATE = """
import triton
import triton.language as tl

{decorator}
def _rows(starts, out, stride, total, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    last = tl.load(starts + row + 1)
    for first in range(tl.load(starts + row), last, BLOCK):
        token = first + tl.arange(0, BLOCK)
        tl.store(out + token * stride, row, mask=token < last)

def compute_token_to_req_indices(query_start_loc, out, num_mapped_tokens, num_tokens):
    rows = len(query_start_loc) - 1
    out[num_mapped_tokens:num_tokens] = 0
    if rows and num_mapped_tokens:
        starts = query_start_loc.contiguous()
        _rows[(rows,)](starts, out, out.stride(0), num_tokens, ROWS={rows}, BLOCK=16)
    return out[:num_tokens]
"""


def advice_of(attnproof, folder, decorator, rows, source=CANDIDATE):
    (folder / "rows.py").write_text(source.format(decorator=decorator, rows=rows))
    quick = ("--depth=quick", "--no-vary", "--no-remember", "--seed=1", "--out=o")
    done = attnproof("verify", f"--ops={NAME}", *quick, "--candidate=rows.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    advice = json.loads((folder / "o/summary.json").read_text())["advice"]
    return [finding for finding in advice if finding["oracle"] == "cost"]


@pytest.mark.lanes
@pytest.mark.parametrize(
    ("decorator", "rows", "argument"),
    [
        (PLAIN, 8, "total is 1, not "),
        ('@triton.jit(do_not_specialize=["total"])', "rows", "ROWS is 1"),
    ],
    ids=["an integer that is specialised", "a count as a constant"],
)
def test_a_kernel_that_a_step_compiles_again_is_advice(
    attnproof, tmp_path, decorator, rows, argument
):
    [finding] = advice_of(attnproof, tmp_path, decorator, rows)
    assert finding["diagnosis"] == recompilation.RECOMPILES
    assert argument in finding["message"]
    case = tmp_path / "o" / finding["case_path"]
    done = attnproof("replay", str(case), "--candidate=rows.py", cwd=tmp_path)
    assert argument in done.stdout


@pytest.mark.lanes
@pytest.mark.parametrize("rows", [8, "triton.next_power_of_2(rows)"], ids=["no count", "a tile"])
def test_a_kernel_with_the_versions_of_a_model_is_none(attnproof, tmp_path, rows):
    decorator = '@triton.jit(do_not_specialize=["total"])'
    assert advice_of(attnproof, tmp_path, decorator, rows) == []


def version(step: int, **arguments: str) -> Version:
    by_name = {name: Argument(*text.split("/")) for name, text in arguments.items()}
    return Version(step, "kernel", by_name)


def failures(*later: Version) -> list[Failure]:
    first = version(0, count="i32/3", row_stride="i32/3", TILE="constexpr 4/4")
    return list(recompilation.judge([first, *later]))


def test_only_steps_after_the_first_ones_are_judged():
    other = {"count": "i32 D/16", "row_stride": "i32/3", "TILE": "constexpr 4/4"}
    assert failures(version(FIRST_STEPS - 1, **other)) == []
    [failure] = failures(version(FIRST_STEPS, **other))
    assert failure.message.endswith("count is 16, not 3")


def test_strides_and_tiles_are_not_judged():
    other = {"count": "i32/5", "row_stride": "i32 D/16", "TILE": "constexpr 8/8"}
    assert failures(version(FIRST_STEPS, **other)) == []


def test_engine_steps_repeat_the_longest_row():
    operation = ALL[NAME]
    cases = [case for _, case in operation.inputs.boundaries()]
    steps = next(
        filter(None, (recompilation.engine_steps(operation, c, problem_of) for c in cases))
    )
    assert [step.num_requests for step in steps] == [3, 5, 9, 18, 35, 1, 4, 16, 32]
    assert len({row for step in steps for row in step.batch.query_lens}) == 1


@pytest.mark.lanes
def test_a_slice_that_is_not_aligned_is_advice(attnproof, tmp_path):
    own = CANDIDATE.replace("query_start_loc.contiguous()", "OWN[rows == 16 :][: rows + 1]")
    own = own.replace("        _rows[", "        starts.copy_(query_start_loc)\n        _rows[")
    own += "\nimport torch\nOWN = torch.zeros(2000, dtype=torch.int32)\n"
    decorator = '@triton.jit(do_not_specialize=["total"])'
    [finding] = advice_of(attnproof, tmp_path, decorator, 8, own)
    assert "starts is a pointer not aligned to 16 bytes" in finding["message"]


def test_two_forms_of_a_function_are_two_kernels():
    first = version(0, pointer="*i32/not aligned")
    aligned = Version(FIRST_STEPS, "kernel", {"pointer": Argument("*i32 D", "aligned")}, number=1)
    assert list(recompilation.judge([first, aligned])) == []
    assert list(recompilation.judge([first, msgspec.structs.replace(aligned, number=0)]))
