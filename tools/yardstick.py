"""Compare the CPU time of a case in `attnproof verify` with that of a bare Hypothesis loop.

    python tools/yardstick.py                 # the operations below
    python tools/yardstick.py --ops A,B

The loop is one process that draws cases, calls candidate and reference, and compares the outputs:
no second process, no guards, no poison, no other oracle. Prints milliseconds of CPU time a case.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from attnproof import optimized, reference
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import by_place
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.equality import agrees
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.task.settings import Settings

USUAL = (
    "build_slot_mapping,BlockTables,CommonAttentionMetadata,CommonMetadataBuilder,"
    "PersistentBatch,XFormersAttentionMetadataBuilder,_make_metadata_with_slice,"
    "compute_causal_conv1d_metadata,compute_slot_mapping,copy_blocks,get_dcp_local_seq_lens,"
    "make_kv_sharing_fast_prefill_common_attn_metadata,make_local_attention_virtual_batches,"
    "paged_attention,prepare_inputs,reorder_batch_to_split_decodes_and_prefills,"
    "reshape_and_cache_flash,split_attn_metadata,split_decodes_and_prefills,swap_blocks"
)
"""Twenty operations that most engines have."""


def loop_seconds(operation: Operation, examples: int) -> tuple[int, float]:
    """Return the number of cases that the loop drew, and its CPU seconds."""
    offered = [offered_by(package, operation) for package in (optimized, reference)]
    operation.built_in.load()
    cases = 0

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @seed(1)
    @given(operation.inputs.cases())
    def draw(case: Case) -> None:
        nonlocal cases
        cases += 1
        got, expected = (_outputs(operation, case, function) for function in offered)
        assert got.keys() == expected.keys()
        for place, right in expected.items():
            assert agrees(operation, place, right, got[place]), place

    _outputs(operation, next(operation.inputs.boundaries())[1], offered[0])  # compiles
    begun = time.process_time()
    draw()
    return cases, time.process_time() - begun


def _outputs(operation: Operation, case: Case, function: object) -> dict:
    call = operation.call.prepare(case, 0, "cpu")
    in_float64 = operation.contract.for_reference
    if in_float64 is not None and function is offered_by(reference, operation):
        in_float64(call)
    return by_place(operation.call.outputs(call, operation.call.run(function, call)))


def verify_seconds(names: list[str], examples: int) -> tuple[int, float]:
    """Return the cases and the CPU seconds of `attnproof verify` on the same operations."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--candidate", "optimized", "--ops", ",".join(names), "--seed", "1"]
        words += ["--examples", str(examples), "--no-remember", "--out", folder]
        command = [sys.executable, "-m", "attnproof", "verify", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = sum(getattr(after, k) - getattr(before, k) for k in ("ru_utime", "ru_stime"))
    return sum(operation["cases"] for operation in summary["operations"]), spent


def main() -> None:
    """Print a line for each operation, and the ratio of both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default=USUAL, help="operations, separated by commas")
    parser.add_argument("--examples", type=int, default=Settings().examples)
    options = parser.parse_args()
    names = [name for name in options.ops.split(",") if ALL[name].inputs.machine is None]
    torch.set_num_threads(1)
    drawn, spent = 0, 0.0
    for name in names:
        cases, seconds = loop_seconds(ALL[name], options.examples)
        print(f"{name:50} {1000 * seconds / cases:6.2f} ms")
        drawn, spent = drawn + cases, spent + seconds
    loop = 1000 * spent / drawn
    cases, seconds = verify_seconds(names, options.examples)
    run = 1000 * seconds / cases
    print(f"loop {loop:.2f} ms, verify {run:.2f} ms a case ({cases:,} cases): {run / loop:.1f}")


if __name__ == "__main__":
    main()
