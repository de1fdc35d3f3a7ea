"""A case from outside is refused with its place, or it can be prepared and the reference called."""

from __future__ import annotations

import random
from copy import deepcopy
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case, decode, encode
from attnproof.harness.operations import ALL
from attnproof.harness.operations.shared.sequence import Transcript
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.cases import read_corpus
from attnproof.harness.running.loading import offered_by

CORPUS = read_corpus(Path(__file__).parents[2] / "corpus")
OPERATIONS = pytest.mark.parametrize("operation", ALL.values(), ids=ALL)
BATCH = make_batch([3, 1], [5, 40], 16)


def first_case(operation):
    """Return a boundary case with as many parameters as there are."""
    cases = [case for _, case in operation.inputs.boundaries()]
    return max(cases, key=lambda case: len(case.params))


@OPERATIONS
def test_every_case_of_an_operation_has_the_declared_types(operation, sampled_batches):
    inputs, cases = operation.inputs, []
    if inputs.machine is None:

        @settings(
            max_examples=100,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(inputs.cases())
        def collect(case):
            cases.append(case)

        collect()
    named = [*inputs.boundaries(), *inputs.large(), *operation.bench.models()]
    cases += [case for _, case in named]
    timed = operation.bench.cases or inputs.from_batch
    cases += [c for batch in sampled_batches for c in (*inputs.from_batch(batch), *timed(batch))]
    for name, fault in inputs.faults.items():
        chosen = islice((case for _, case in inputs.boundaries() if fault.applies(case)), 2)
        cases += [msgspec.structs.replace(case, fault=name) for case in chosen]
    cases += [sourced.case for sourced in CORPUS if sourced.case.operation == operation.name]
    assert {problem_of(decode(encode(case))) for case in cases} == {""}


@OPERATIONS
@pytest.mark.parametrize("value", ["seven!", 2**130, [0] * 10**6, {"a": 1}, -(2**31) - 1, 0.5])
def test_a_value_that_no_parameter_can_have_is_refused(operation, value):
    case = first_case(operation)
    for name, given_value in case.params.items():
        if isinstance(value, str) and operation.name == "is_valid_kv_cache_layout":
            continue  # this operation takes any word
        if value == 0.5 and isinstance(given_value, int | float):
            continue  # a float may be one, and an int may stand for a float
        if value == {"a": 1} and isinstance(given_value, dict):
            value = {"a": "b"}
        changed = msgspec.structs.replace(case, params=case.params | {name: value})
        problem = problem_of(changed)
        assert operation.name in problem
        assert name in problem


@OPERATIONS
def test_an_unknown_or_missing_parameter_is_refused(operation):
    case = first_case(operation)
    more = msgspec.structs.replace(case, params=case.params | {"nonsense": 1})
    assert problem_of(more) == (
        f"params of {operation.name}: Object contains unknown field `nonsense`"
    )
    required = [
        field.name for field in msgspec.structs.fields(operation.inputs.params) if field.required
    ]
    for name in required:
        fewer = {key: value for key, value in case.params.items() if key != name}
        problem = problem_of(msgspec.structs.replace(case, params=fewer))
        assert problem == (f"params of {operation.name}: Object missing required field `{name}`")


@OPERATIONS
def test_a_batch_is_there_if_the_operation_needs_one(operation):
    case = first_case(operation)
    other = BATCH if case.batch is None else None
    assert " batch" in problem_of(msgspec.structs.replace(case, batch=other))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"blocks": ((0,), (1, 2))}, "batch.blocks[1]: 2 blocks for 41 tokens of block size 16"),
        ({"query_lens": (3,)}, "batch: 1 query_lens, 2 computed_lens and 2 blocks"),
        ({"logits_indices": (4,)}, "batch.logits_indices: 4, of 4 tokens"),
        ({"no_slots": True}, "batch.no_slots: CommonAttentionMetadata needs slots of a cache"),
        ({"encoder_seq_lens": (1,)}, "batch.encoder_seq_lens: 1 entries for 2 rows"),
        ({"dcp_local_seq_lens": (9,)}, "batch.dcp_local_seq_lens: 1 entries for 2 rows"),
        ({"seq_slack": 2**31 - 1}, "batch.computed_lens[0]: a sequence of more than 2147483647"),
        ({"spare_columns": 2**20, "padded_requests": 2**16}, "at most 67108864 are allowed"),
    ],
)
def test_an_inconsistent_batch_is_refused_with_the_place(change, problem):
    case = Case("CommonAttentionMetadata", BATCH, {"more_rows": 0, "more_tokens": 0})
    assert problem_of(case) == ""
    changed = msgspec.structs.replace(case, batch=msgspec.structs.replace(BATCH, **change))
    assert problem in problem_of(changed)


def test_a_fault_that_leaves_the_input_well_formed_is_refused():
    case = Case("split_attn_metadata", BATCH, {"cuts": None}, "no tokens (K4)")
    assert "does not apply" in problem_of(case)


def mutants(case, count):
    """Yield the JSON of a case with one to three random changes."""
    lot = random.Random(f"{case.id}")
    plain = msgspec.to_builtins(case)
    for _ in range(count):
        data = deepcopy(plain)
        for _ in range(lot.choice((1, 1, 2, 3))):
            change(data, lot)
        if lot.random() < 0.7:
            fit_blocks(data.get("batch"))
        yield msgspec.json.encode(data)


def fit_blocks(batch):
    """Give each request as many blocks as it needs if the lengths are usable."""
    try:
        batch["blocks"] = [
            [*row, *range(100, 1000)][: -(-(query + computed) // batch["block_size"])]
            for row, query, computed in zip(
                batch["blocks"], batch["query_lens"], batch["computed_lens"], strict=True
            )
        ]
    except (TypeError, KeyError, ValueError, ZeroDivisionError):
        return


def change(data, lot):
    """Change one value somewhere in the data: drop, repeat, resize or retype it."""
    places = [(data[top], key) for top in ("batch", "params") if top in data for key in data[top]]
    if not places:
        return
    holder, key = lot.choice(places)
    while isinstance(holder[key], list | dict) and holder[key] and lot.random() < 0.7:
        holder = holder[key]
        key = lot.choice(list(holder)) if isinstance(holder, dict) else lot.randrange(len(holder))
    value = holder[key]
    if lot.random() < 0.15:
        del holder[key]
    elif isinstance(value, list) and lot.random() < 0.7:
        holder[key] = lot.choice((value + value[:1], value[1:], [], value * 2, value[::-1]))
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        holder[key] = lot.choice((True, False, None, "", "float16", 0, 1, [], {}))
    elif isinstance(value, int | float):
        near = (value + 1, value - 1, -value, 2 * value, 0, 1)
        holder[key] = lot.choice((*near, 2, 3, 7, 100, 2**17, 2**31 - 1, 2**40, "1", None, 0.5))
    else:
        holder[key] = lot.choice((None, 0, "", []))


@OPERATIONS
def test_a_changed_case_is_refused_or_can_be_run(operation):
    offer, accepted = offered_by(reference, operation), 0
    cases = [case for _, case in operation.inputs.boundaries()]
    cases = [case for case in cases if len(encode(case)) < 2000][:40]
    for case in cases:
        for data in mutants(case, -(-300 // len(cases))):
            try:
                changed = decode(data)
            except msgspec.ValidationError:
                continue
            if problem_of(changed):
                continue
            accepted += 1
            result = operation.call.run(offer, operation.call.prepare(changed, 0, "cpu"))
            assert not isinstance(result, Transcript) or result.error is None, changed
    assert accepted > 10
