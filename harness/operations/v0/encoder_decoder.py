"""Operations of SPEC.md section 7 that pick lengths and tables of encoder-decoder batches.

Bug class: lengths or tables of the other side, which a kernel's mask can hide (K25).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.v0.encoder_decoder_cases import (
    ARGS,
    COUNTS,
    CROSS,
    CROSS_FIELDS,
    CROSS_SET,
    DECODER,
    ENCODER,
    ENCODER_ONLY,
    ENCODER_SET,
    LENGTHS,
    EncoderDecoderParams,
    boundaries_of,
    cases_of,
    needed_fields,
    prepare,
    problem,
    steps_of,
)

_MAXIMA = ("max_prefill_seq_len", "max_decode_seq_len", "max_encoder_seq_len")
_TOTALS = ("num_prefills", "num_prefill_tokens", "num_decode_tokens", "num_encoder_tokens")
_NO_METADATA = {"no metadata": wrong_type("attn_metadata")}


def _field_fault(field: str) -> Fault:
    """Return the fault of a needed field that is None."""
    return Fault(
        "attn_metadata",
        lambda metadata: _without(metadata, field),
        field,
        applies=lambda case: field in needed_fields(case),
    )


def _without(metadata: Any, field: str) -> Any:
    """Return a copy with None in a field, which may not be one of its class."""
    changed = copy(metadata)
    setattr(changed, field, None)
    return changed


def _operation(
    name: str,
    summary: str,
    outputs: Callable[[Call, Any], Outputs],
    contract: Contract,
    faults: dict[str, Fault],
) -> Operation:
    return Operation(
        name=name,
        section="7",
        summary=summary,
        inputs=Inputs(
            params=EncoderDecoderParams,
            problem=problem,
            cases=cases_of(name),
            boundaries=boundaries_of(name),
            from_batch=steps_of(name),
            faults=faults,
        ),
        call=FunctionCall(prepare=prepare, outputs=outputs),
        contract=contract,
        bench=Bench(cases=lambda batch: steps_of(name)(batch) if batch.num_requests == 8 else ()),
    )


# get_num_prefill_decode_query_kv_tokens


def _count_outputs(_call: Call, result: Any) -> Outputs:
    prefill_queries, prefill_keys, decode_queries = result
    return {
        "prefill_query_tokens": prefill_queries,
        "prefill_kv_tokens": prefill_keys,
        "decode_query_tokens": decode_queries,
    }


def _count_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    fields, kind = call.facts.fields, call.facts.attn_type
    tokens = fields["num_prefill_tokens"], fields["num_decode_tokens"]
    encoder = fields.get("num_encoder_tokens")
    if kind in (ENCODER, CROSS) and outputs["prefill_kv_tokens"] != encoder:
        yield Violation("prefill_kv_tokens", "is not the number of encoder tokens")
    if kind == ENCODER and outputs["decode_query_tokens"] != 0:
        yield Violation("decode_query_tokens", "an encoder has no decodes")
    if kind != ENCODER and outputs["decode_query_tokens"] != tokens[1]:
        yield Violation("decode_query_tokens", "is not the number of decode tokens")
    if kind != ENCODER and outputs["prefill_query_tokens"] != tokens[0]:
        yield Violation("prefill_query_tokens", "is not the number of prefill tokens")
    one_side = kind != CROSS
    if one_side and outputs["prefill_query_tokens"] != outputs["prefill_kv_tokens"]:
        yield Violation("prefill_kv_tokens", "queries and keys are the same tokens here")


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name the other field of the metadata that was taken: a tensor, a maximum or a count."""
    fields = call.facts.fields
    alike = _MAXIMA if place.field == "max_seq_len" else _TOTALS
    if isinstance(got, torch.Tensor):
        names = [name for name, value in fields.items() if value is got]
    elif type(got) is int and got != expected:
        names = [name for name in alike if fields.get(name) == got]
    else:
        names = []
    return f"{names[0]} taken" if names else ""


get_num_prefill_decode_query_kv_tokens = _operation(
    COUNTS,
    "query and key tokens of an encoder-decoder batch",
    _count_outputs,
    Contract(invariants=_count_invariants, diagnose=_diagnose),
    {
        "encoder tokens not counted": _field_fault("num_encoder_tokens"),
        "another kind of attention": wrong_value("attn_type", "decoder_only"),
        "kind of another type": Fault("attn_type", lambda _: 3, error=TypeError),
        **_NO_METADATA,
    },
)

# get_seq_len_block_table_args


def _args_outputs(_call: Call, result: Any) -> Outputs:
    seq_lens, max_seq_len, block_tables = result
    return {"seq_lens": seq_lens, "max_seq_len": max_seq_len, "block_tables": block_tables}


def _args_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that the tensors are the metadata's own, of the attended side."""
    fields, kind = call.facts.fields, call.facts.attn_type
    side = "" if kind == DECODER else "encoder_"
    tables = {DECODER: "block_tables", CROSS: "cross_block_tables"}.get(kind)
    if not _is_at(outputs["seq_lens"], fields[f"{side}seq_lens_tensor"]):
        yield Violation("seq_lens", f"is not the metadata's {side}seq_lens_tensor")
    if tables is None or fields[tables] is None:
        if outputs["block_tables"] is not None:
            yield Violation("block_tables", "where there are none")
    elif not _is_at(outputs["block_tables"], fields[tables]):
        yield Violation("block_tables", f"is not the metadata's {tables}")
    longest = f"max_{'prefill' if call['is_prompt'] else 'decode'}_seq_len"
    longest = "max_encoder_seq_len" if side else longest
    if outputs["max_seq_len"] != fields[longest]:
        yield Violation("max_seq_len", f"is not the metadata's {longest}")


def _is_at(value: Any, tensor: torch.Tensor) -> bool:
    """True if the value is a tensor that begins where the given one does."""
    return isinstance(value, torch.Tensor) and value.data_ptr() == tensor.data_ptr()


def _longest_fault(field: str, *, is_prompt: bool) -> Fault:
    def applies(case: Case) -> bool:
        params = case.params
        return bool(params["attn_type"] == DECODER and params["is_prompt"] is is_prompt)

    return replace(_field_fault(field), applies=applies)


def _attention_fault(kind: Any) -> Fault:
    return Fault("attn_type", lambda _: kind, error=AttributeError)


get_seq_len_block_table_args = _operation(
    ARGS,
    "lengths and block tables of the keys that are attended to",
    _args_outputs,
    Contract(
        invariants=_args_invariants,
        diagnose=_diagnose,
        may_alias=frozenset({"seq_lens", "block_tables"}),
    ),
    {
        **{f"{name} not set": _field_fault(name) for name in ("seq_lens_tensor", *LENGTHS[1:])},
        "cross_block_tables not set": _field_fault("cross_block_tables"),
        "longest prefill not set": _longest_fault("max_prefill_seq_len", is_prompt=True),
        "longest decode not set": _longest_fault("max_decode_seq_len", is_prompt=False),
        "encoder only": _attention_fault(ENCODER_ONLY),
        "another kind of attention": _attention_fault("cross"),
        **_NO_METADATA,
        "number for a flag": Fault("is_prompt", lambda _: 1, error=TypeError),
    },
)

# is_all_encoder_attn_metadata_set, is_all_cross_attn_metadata_set


def _set_invariants(names: tuple[str, ...]) -> Callable[[Call, Outputs], Iterator[Violation]]:
    def invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
        missing = [name for name in names if call.facts.fields.get(name) is None]
        if outputs["result"] is not (not missing):
            yield Violation("result", f"does not agree with the fields {', '.join(names)}")

    return invariants


OPERATIONS = (
    get_num_prefill_decode_query_kv_tokens,
    get_seq_len_block_table_args,
    *(
        _operation(
            name,
            f"True if metadata has all fields for {user}",
            returned,
            Contract(invariants=_set_invariants(fields)),
            _NO_METADATA,
        )
        for name, user, fields in (
            (ENCODER_SET, "an encoder", LENGTHS),
            (CROSS_SET, "attention to an encoder", LENGTHS + CROSS_FIELDS),
        )
    ),
)
