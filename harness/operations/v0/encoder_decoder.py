"""Operations of SPEC.md section 7 that pick lengths and tables of encoder-decoder batches.

Bug class: lengths or tables of the other side, which a kernel's mask can hide (K25).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import BatchArrays, batch_arrays, table_piece
from attnproof.harness.cases.engines.config import DecoderMetadata, EncoderDecoderMetadata
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import (
    batch_of,
    returned,
    wrong_type,
    wrong_value,
)
from attnproof.reference.interface import AttentionType

COUNTS, ARGS = "get_num_prefill_decode_query_kv_tokens", "get_seq_len_block_table_args"
ENCODER_SET, CROSS_SET = "is_all_encoder_attn_metadata_set", "is_all_cross_attn_metadata_set"
_DECODER, _ENCODER = AttentionType.DECODER, AttentionType.ENCODER
_ENCODER_ONLY, _CROSS = AttentionType.ENCODER_ONLY, AttentionType.ENCODER_DECODER
_LENGTHS = ("encoder_seq_lens", "encoder_seq_lens_tensor", "max_encoder_seq_len")
_CROSS_FIELDS = ("cross_slot_mapping", "cross_block_tables")
_ABSENT = (*_LENGTHS, "num_encoder_tokens", *_CROSS_FIELDS, "seq_lens_tensor", "block_tables")
_MAXIMA = ("max_prefill_seq_len", "max_decode_seq_len", "max_encoder_seq_len")
_TOTALS = ("num_prefills", "num_prefill_tokens", "num_decode_tokens", "num_encoder_tokens")
_WHY_SHARED = "picks fields and computes nothing"
_NO_METADATA = {"no metadata": wrong_type("attn_metadata")}


@dataclass(frozen=True, kw_only=True)
class _SideFacts(Facts):
    fields: dict[str, Any]
    """Fields of the metadata."""
    attn_type: str


def _needed(case: Case) -> tuple[str, ...]:
    """Return the fields that the operation needs for the case's kind of attention."""
    kind = case.params["attn_type"]
    if case.operation == COUNTS:
        return ("num_encoder_tokens",) if kind in (_ENCODER, _CROSS) else ()
    if case.operation != ARGS:
        return ()
    if kind == _DECODER:
        return ("seq_lens_tensor",)
    return (*_LENGTHS[1:], *(_CROSS_FIELDS[1:] if kind == _CROSS else ()))


def _kinds(operation: str) -> tuple[str, ...]:
    if operation == ARGS:
        return _DECODER, _ENCODER, _CROSS
    return _DECODER, _ENCODER, _ENCODER_ONLY, _CROSS


def _case(
    operation: str,
    batch: Batch,
    attn_type: str = _DECODER,
    *,
    is_prompt: bool = False,
    encoder: list[int] | None = None,
    absent: list[str] | None = None,
    decoder_only: bool = False,
) -> Case:
    """Return the case of a batch.

    `encoder`: encoder tokens of each request. `absent`: fields that are None unless needed.
    `decoder_only`: True if the metadata's class has no field of an encoder.
    """
    params = {"attn_type": attn_type, "is_prompt": is_prompt, "decoder_only": decoder_only}
    lists = {"encoder": encoder or [], "absent": absent or []}
    return Case(operation, batch, params | lists)


def _cases(operation: str) -> Callable[[], st.SearchStrategy[Case]]:
    return lambda: st.builds(
        lambda batch, kind, is_prompt, encoder, absent, decoder_only: _case(
            operation,
            batch,
            kind,
            is_prompt=is_prompt,
            encoder=encoder,
            absent=absent,
            decoder_only=decoder_only,
        ),
        batches(),
        st.sampled_from(_kinds(operation)),
        st.booleans(),
        st.lists(st.integers(0, 40), max_size=8),
        st.lists(st.sampled_from(_ABSENT), max_size=3, unique=True),
        st.booleans(),
    )


def _boundaries(operation: str) -> Callable[[], Iterator[tuple[str, Case]]]:
    def boundaries() -> Iterator[tuple[str, Case]]:
        mixed = make_batch([5, 3, 1, 1], [2, 0, 7, 11], 4)
        # One decode is longer than every prefill; encoder lengths differ from both.
        for kind in _kinds(operation):
            for is_prompt in (True, False):
                name = f"{kind}, {'prompts' if is_prompt else 'decodes'} (K25)"
                yield name, _case(operation, mixed, kind, is_prompt=is_prompt, encoder=[9, 4, 6, 2])
        prefills, decodes = make_batch([5, 3], [0, 2], 4), make_batch([1, 1], [6, 3], 4)
        kind = _kinds(operation)[-1]
        for name, batch in (("prefills", prefills), ("decodes", decodes)):
            yield f"only {name}", _case(operation, batch, kind, is_prompt=True, encoder=[3, 8])
        yield "no requests", _case(operation, make_batch([], [], 4), kind)
        yield "encoders without tokens", _case(operation, mixed, kind, encoder=[0, 0, 0, 0])
        yield "model without an encoder", _case(operation, mixed, decoder_only=True)
        for field in _ABSENT:
            yield f"{field} not set", _case(operation, mixed, encoder=[9, 4, 6, 2], absent=[field])
        every = list(_ABSENT)
        yield "nothing set that is not needed", _case(operation, mixed, kind, absent=every)

    return boundaries


def _steps(operation: str) -> Callable[[Batch], Iterator[Case]]:
    """Return the cases of a batch; each request has an encoder as long as its computed tokens."""
    return lambda batch: iter(
        [
            _case(
                operation,
                batch,
                _kinds(operation)[batch.num_requests % len(_kinds(operation))],
                is_prompt=batch.num_tokens > batch.num_requests,
                encoder=[min(64, computed) for computed in batch.computed_lens],
            )
        ]
    )


def _pieces(
    made: BatchArrays, encoder: np.ndarray, stale: int, block_size: int, step: int
) -> list[Piece]:
    width = -(-int(encoder.max(initial=0)) // block_size)
    cross = 1000 + np.arange(len(encoder) * width, dtype=np.int32).reshape(len(encoder), width)
    slots = 16000 + np.arange(encoder.sum(), dtype=np.int64)
    lengths = made.seq_lens.astype(np.int32)
    return [
        Piece("seq_lens_tensor", lengths, False, (step,)),
        table_piece("block_tables", made.block_table_with(stale), step),
        Piece("encoder_seq_lens_tensor", encoder, False, (step,)),
        Piece("cross_slot_mapping", slots, False, (step,)),
        table_piece("cross_block_tables", cross, step),
    ]


def _prepare(case: Case, pattern: int, device: str) -> Call:
    """Return a call on V0 metadata of the batch, in which queries of one token are decodes."""
    batch, params = batch_of(case), case.params
    made, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    encoder = np.array([*params["encoder"], *[0] * made.num_reqs][: made.num_reqs], dtype=np.int32)
    arena = Arena(
        _pieces(made, encoder, stale, batch.block_size, 2 if batch.strided else 1), stale, device
    )
    queries = np.diff(made.query_start_loc)
    prefills = queries > 1
    fields: dict[str, Any] = {
        "num_prefills": int(prefills.sum()),
        "num_prefill_tokens": int(queries[prefills].sum()),
        "num_decode_tokens": int(queries[~prefills].sum()),
        "seq_lens": made.seq_lens.tolist(),
        "seq_lens_tensor": arena.tensors["seq_lens_tensor"],
        "max_prefill_seq_len": int(made.seq_lens[prefills].max(initial=0)),
        "max_decode_seq_len": int(made.seq_lens[~prefills].max(initial=0)),
        "block_tables": arena.tensors["block_tables"],
    }
    cls: type[DecoderMetadata] = DecoderMetadata
    if not params["decoder_only"] or _needed(case):
        cls = EncoderDecoderMetadata
        fields |= {
            "encoder_seq_lens": encoder.tolist(),
            "max_encoder_seq_len": int(encoder.max(initial=0)),
            "num_encoder_tokens": int(encoder.sum()),
        }
        fields |= {name: arena.tensors[name] for name in (_LENGTHS[1], *_CROSS_FIELDS)}
    fields |= {
        name: None for name in params["absent"] if name in fields and name not in _needed(case)
    }
    args: dict[str, Any] = {"attn_metadata": cls(**fields)}
    if case.operation == ARGS:
        args["is_prompt"] = params["is_prompt"]
    if case.operation in (ARGS, COUNTS):
        args["attn_type"] = params["attn_type"]
    return Call(args, arena=arena, facts=_SideFacts(fields=fields, attn_type=params["attn_type"]))


def _field_fault(field: str) -> Fault:
    """Return the fault of a needed field that is None."""
    return Fault(
        "attn_metadata",
        lambda metadata: replace(metadata, **{field: None}),
        field,
        applies=lambda case: field in _needed(case),
    )


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
            cases=_cases(name),
            boundaries=_boundaries(name),
            from_batch=_steps(name),
            faults=faults,
        ),
        call=FunctionCall(prepare=_prepare, outputs=outputs),
        contract=contract,
        bench=Bench(cases=lambda batch: _steps(name)(batch) if batch.num_requests == 8 else ()),
        built_in=BuiltIn(shared=_WHY_SHARED),
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
    encoder = sum(fields.get("encoder_seq_lens") or [])
    known = fields.get("encoder_seq_lens") is not None
    if kind in (_ENCODER, _CROSS) and known and outputs["prefill_kv_tokens"] != encoder:
        yield Violation("prefill_kv_tokens", "is not the number of encoder tokens")
    if kind == _ENCODER and outputs["decode_query_tokens"] != 0:
        yield Violation("decode_query_tokens", "an encoder has no decodes")
    if kind != _ENCODER and outputs["decode_query_tokens"] != tokens[1]:
        yield Violation("decode_query_tokens", "is not the number of decode tokens")
    if kind != _ENCODER and outputs["prefill_query_tokens"] != tokens[0]:
        yield Violation("prefill_query_tokens", "is not the number of prefill tokens")
    one_side = kind != _CROSS
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
    side = "" if kind == _DECODER else "encoder_"
    tables = {_DECODER: "block_tables", _CROSS: "cross_block_tables"}.get(kind)
    if outputs["seq_lens"].data_ptr() != fields[f"{side}seq_lens_tensor"].data_ptr():
        yield Violation("seq_lens", f"is not the metadata's {side}seq_lens_tensor")
    if tables is None or fields[tables] is None:
        if outputs["block_tables"] is not None:
            yield Violation("block_tables", "where there are none")
    elif outputs["block_tables"].data_ptr() != fields[tables].data_ptr():
        yield Violation("block_tables", f"is not the metadata's {tables}")
    longest = max(outputs["seq_lens"].tolist(), default=0)
    if side and outputs["max_seq_len"] != longest:
        yield Violation("max_seq_len", "is not the longest encoder")


def _longest_fault(field: str, *, is_prompt: bool) -> Fault:
    def applies(case: Case) -> bool:
        params = case.params
        return bool(params["attn_type"] == _DECODER and params["is_prompt"] is is_prompt)

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
        **{f"{name} not set": _field_fault(name) for name in ("seq_lens_tensor", *_LENGTHS[1:])},
        "cross_block_tables not set": _field_fault("cross_block_tables"),
        "longest prefill not set": _longest_fault("max_prefill_seq_len", is_prompt=True),
        "longest decode not set": _longest_fault("max_decode_seq_len", is_prompt=False),
        "encoder only": _attention_fault(_ENCODER_ONLY),
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
            (ENCODER_SET, "an encoder", _LENGTHS),
            (CROSS_SET, "attention to an encoder", _LENGTHS + _CROSS_FIELDS),
        )
    ),
)
