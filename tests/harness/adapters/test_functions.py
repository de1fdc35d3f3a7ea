"""vLLM's functions under our names; arguments are converted once, before the clock starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from attnproof.harness.interfaces.functions import InputBatch
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.reference.shared import CommonAttentionMetadata

SPLIT = "split_decodes_and_prefills"
LOCAL = "make_local_attention_virtual_batches"


@pytest.fixture
def conversions(part, monkeypatch):
    """Names of the functions that have converted something since the adapter's import."""
    seen = []

    def watch():
        for name in ("_their_metadata", "_our_metadata"):
            conversion = part("metadata").CONVERSION
            original = getattr(conversion, name)
            monkeypatch.setattr(
                conversion, name, lambda *a, n=name, f=original: seen.append(n) or f(*a)
            )
        return seen

    return watch


@pytest.mark.parametrize("release", ["0.10.2", "0.32.0"])
def test_timed_call_converts_nothing(beside, batch, conversions, release):
    offered = getattr(beside(release), LOCAL)
    seen = conversions()
    thunk = offered.bind(8, batch, 4)
    assert seen == ["_their_metadata"]
    first, second = thunk(), thunk()
    assert seen == ["_their_metadata"]
    for result in (first, second):
        made = result[0] if isinstance(result, tuple) else result
        assert not isinstance(made, CommonAttentionMetadata)
        assert made.query_start_loc is batch.query_start_loc


def test_a_call_converts_there_and_back(beside, batch, conversions):
    offered = getattr(beside("0.10.2"), LOCAL)
    seen = conversions()
    assert isinstance(offered(8, batch, 4), CommonAttentionMetadata)
    assert seen == ["_their_metadata", "_our_metadata"]


def test_the_clock_gets_vllms_own_function(beside, batch):
    offered = getattr(beside("0.11.2"), SPLIT)
    operation = ALL[SPLIT]
    case = dict(operation.inputs.boundaries()).popitem()[1]
    thunk = operation.call.bind(offered, operation.call.prepare(case, 0, "cpu"))
    assert thunk.func is offered.function
    assert thunk.func.__module__ == "vllm.v1.attention.backends.utils"


def test_false_flag_is_left_out_for_a_version_without_it(beside, batch):
    split = getattr(beside("0.10.2"), SPLIT)
    assert split(batch) == (3, 0, 1, 0)
    assert split(batch, 2, False) == (3, 0, 2, 0)
    with pytest.raises(TypeError, match="positional argument"):
        split(batch, 2, True)


def test_flag_is_passed_to_a_version_that_has_it(beside, batch):
    assert getattr(beside("0.11.2"), SPLIT)(batch, 2, True) == (3, 0, 2, 1)


def test_requests_count_as_continued_for_a_version_that_reads_their_progress(beside):
    reorder = beside("0.11.2").reorder_batch_to_split_decodes_and_prefills
    rows = SimpleNamespace(req_ids=["a", "b"], swap_states=pytest.fail)
    assert reorder(rows, SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 1}), 1) is False


def test_rows_of_the_given_engine_are_moved():
    swaps = []
    rows = SimpleNamespace(req_ids=["a", "b"], swap_states=lambda i, j: swaps.append((i, j)))
    seen = InputBatch(rows, 2)
    seen.swap_states(0, 1)
    assert swaps == [(0, 1)]
    assert seen.req_ids is rows.req_ids


def test_offsets_are_on_the_cpu_for_a_version_that_takes_them_there(beside):
    offsets = torch.tensor([0, 3, 9], dtype=torch.int32)
    seen, device = beside("0.32.0").compute_causal_conv1d_metadata(offsets)
    assert seen is offsets
    assert device == offsets.device


@pytest.mark.parametrize("name", [SPLIT, LOCAL])
def test_a_converted_case_is_judged_as_any_other(beside, name):
    """The mistakes of the stand-in show in its result; the conversion adds none."""
    operation = ALL[name]
    case = next(c for _, c in operation.inputs.boundaries() if isinstance(c, Case) and c.batch)
    call = operation.call.prepare(case, 0, "cpu")
    outputs = operation.call.outputs(
        call, getattr(beside("0.10.2"), name)(*list(call.args.values())[:2])
    )
    expected = (
        {"num_decodes": call["common_attn_metadata"].num_reqs}
        if name == SPLIT
        else {"max_query_len": 0}
    )
    assert {field: outputs[field] for field in expected} == expected
