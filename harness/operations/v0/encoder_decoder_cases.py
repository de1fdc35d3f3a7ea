"""Cases and calls of the operations on encoder-decoder batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import numpy as np
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import BatchArrays, batch_arrays, table_piece
from attnproof.harness.cases.engines.config import DecoderMetadata, EncoderDecoderMetadata
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Facts
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Lengths, Params, size_problem
from attnproof.reference.interface import AttentionType

COUNTS, ARGS = "get_num_prefill_decode_query_kv_tokens", "get_seq_len_block_table_args"
ENCODER_SET, CROSS_SET = "is_all_encoder_attn_metadata_set", "is_all_cross_attn_metadata_set"
DECODER, ENCODER = AttentionType.DECODER, AttentionType.ENCODER
ENCODER_ONLY, CROSS = AttentionType.ENCODER_ONLY, AttentionType.ENCODER_DECODER
_CAPTURED_SLACK = 100
"""Tokens by which the maxima of a captured graph exceed its lengths."""
LENGTHS = ("encoder_seq_lens", "encoder_seq_lens_tensor", "max_encoder_seq_len")
CROSS_FIELDS = ("cross_slot_mapping", "cross_block_tables")
_ABSENT = (*LENGTHS, "num_encoder_tokens", *CROSS_FIELDS, "seq_lens_tensor", "block_tables")


@dataclass(frozen=True, kw_only=True)
class _SideFacts(Facts):
    fields: dict[str, Any]
    """Fields of the metadata."""
    attn_type: str


class EncoderDecoderParams(Params):
    """Parameters of the operations on V0 metadata with two sides."""

    attn_type: Literal["decoder", "encoder", "encoder_only", "encoder_decoder"]
    """Kind of attention of the layer."""
    is_prompt: bool
    """True for prefills, False for decodes."""
    decoder_only: bool
    encoder: Lengths
    absent: Annotated[list[Annotated[str, Meta(max_length=64)]], Meta(max_length=64)]
    assigned: bool = False
    """True if an instance of the class without an encoder's fields gets them by assignment."""
    captured: bool = False
    """True for the metadata of a graph capture, whose encoder tokens are counted as 0."""


def problem(case: Case) -> str:
    """Return why the metadata cannot be made, "" if it can."""
    batch, params = batch_of(case), case.params
    if params["attn_type"] not in _kinds(case.operation):
        return f"attn_type: {params['attn_type']!r} is no argument of {case.operation}"
    unknown = [name for name in params["absent"] if name not in _ABSENT]
    if unknown:
        return f"absent: no field {unknown[0]!r}"
    rows = batch.num_requests + batch.padded_requests
    longest = max(params["encoder"], default=0)
    return size_problem("encoder", rows * longest)


def needed_fields(case: Case) -> tuple[str, ...]:
    """Return the fields that the operation needs for the case's kind of attention."""
    kind = case.params["attn_type"]
    if case.operation == COUNTS:
        return ("num_encoder_tokens",) if kind in (ENCODER, CROSS) else ()
    if case.operation != ARGS:
        return ()
    if kind == DECODER:
        return ("seq_lens_tensor",)
    return (*LENGTHS[1:], *(CROSS_FIELDS[1:] if kind == CROSS else ()))


def _kinds(operation: str) -> tuple[str, ...]:
    if operation == ARGS:
        return DECODER, ENCODER, CROSS
    return DECODER, ENCODER, ENCODER_ONLY, CROSS


def _case(
    operation: str,
    batch: Batch,
    attn_type: str = DECODER,
    *,
    is_prompt: bool = False,
    encoder: list[int] | None = None,
    absent: list[str] | None = None,
    decoder_only: bool = False,
    assigned: bool = False,
    captured: bool = False,
) -> Case:
    """Return the case of a batch.

    `encoder`: encoder tokens of each request. `absent`: fields that are None unless needed.
    `decoder_only`: True if the metadata's class has no field of an encoder. `captured`: True
    for the metadata of a captured graph: no encoder tokens, and maxima above the lengths.
    """
    params = {"attn_type": attn_type, "is_prompt": is_prompt, "decoder_only": decoder_only}
    lists = {"encoder": encoder or [], "absent": absent or []}
    flags = {"assigned": assigned, "captured": captured}
    return Case(operation, batch, params | lists | flags)


def cases_of(operation: str) -> Callable[[], st.SearchStrategy[Case]]:
    """Return the function that makes the strategy of the operation's cases."""
    return lambda: st.builds(
        lambda batch, kind, is_prompt, encoder, absent, decoder_only, assigned, captured: _case(
            operation,
            batch,
            kind,
            is_prompt=is_prompt,
            encoder=encoder,
            absent=absent,
            decoder_only=decoder_only,
            assigned=assigned,
            captured=captured,
        ),
        batches(),
        st.sampled_from(_kinds(operation)),
        st.booleans(),
        st.lists(st.integers(0, 40), max_size=8),
        st.lists(st.sampled_from(_ABSENT), max_size=3, unique=True),
        st.booleans(),
        st.booleans(),
        st.integers(0, 3).map(lambda number: number == 3),
    )


def boundaries_of(operation: str) -> Callable[[], Iterator[tuple[str, Case]]]:
    """Return the function that yields the operation's boundaries."""

    def boundaries() -> Iterator[tuple[str, Case]]:
        mixed = make_batch([5, 3, 1, 1], [2, 0, 7, 11], 4)
        # One decode is longer than every prefill; encoder lengths differ from both.
        for kind in _kinds(operation):
            for is_prompt in (True, False):
                name = f"{kind}, {'prompts' if is_prompt else 'decodes'} (K25)"
                yield name, _case(operation, mixed, kind, is_prompt=is_prompt, encoder=[9, 4, 6, 2])
        prefills, decodes = make_batch([5, 3], [0, 2], 4), make_batch([1, 1], [6, 3], 4)
        new = make_batch([5, 3], [0, 0], 4)
        kind = _kinds(operation)[-1]
        for name, batch in (("prefills", prefills), ("decodes", decodes)):
            yield f"only {name}", _case(operation, batch, kind, is_prompt=True, encoder=[3, 8])
        yield "no requests", _case(operation, make_batch([], [], 4), kind)
        yield "encoders without tokens", _case(operation, mixed, kind, encoder=[0, 0, 0, 0])
        yield "model without an encoder", _case(operation, mixed, decoder_only=True)
        lengths = [9, 4, 6, 2]
        yield "assigned fields", _case(operation, mixed, kind, encoder=lengths, assigned=True)
        for kind in _kinds(operation):
            yield (
                f"{kind}, captured",
                _case(operation, decodes, kind, encoder=[3, 8], captured=True),
            )
            yield (
                f"{kind}, new prompts",
                _case(operation, new, kind, is_prompt=True, encoder=[3, 8]),
            )
        for field in _ABSENT:
            yield f"{field} not set", _case(operation, mixed, encoder=[9, 4, 6, 2], absent=[field])
        every = list(_ABSENT)
        yield "nothing set that is not needed", _case(operation, mixed, kind, absent=every)

    return boundaries


def steps_of(operation: str) -> Callable[[Batch], Iterator[Case]]:
    """Return the function from a batch to cases; encoders are as long as the computed tokens."""
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
    arrays: BatchArrays, encoder: np.ndarray, stale: int, block_size: int, step: int
) -> list[Piece]:
    width = -(-int(encoder.max(initial=0)) // block_size)
    cross = 1000 + np.arange(len(encoder) * width, dtype=np.int32).reshape(len(encoder), width)
    slots = 16000 + np.arange(encoder.sum(), dtype=np.int64)
    table = arrays.block_table_with(stale)
    if not arrays.num_computed_tokens.any():  # prompts that are computed at once read no blocks
        table = table[:, :0]
    lengths = arrays.seq_lens.astype(np.int32)
    return [
        Piece("seq_lens_tensor", lengths, False, (step,)),
        table_piece("block_tables", table, step),
        Piece("encoder_seq_lens_tensor", encoder, False, (step,)),
        Piece("cross_slot_mapping", slots, False, (step,)),
        table_piece("cross_block_tables", cross, step),
    ]


def prepare(case: Case, pattern: int, device: str) -> Call:
    """Return a call on V0 metadata of the batch, whose queries of one token are decodes."""
    batch, params = batch_of(case), case.params
    arrays, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    encoder = np.array(
        [*params["encoder"], *[0] * arrays.num_reqs][: arrays.num_reqs], dtype=np.int32
    )
    arena = Arena(
        _pieces(arrays, encoder, stale, batch.block_size, 2 if batch.strided else 1), stale, device
    )
    captured = params.get("captured", False)
    beyond = _CAPTURED_SLACK if captured else 0
    queries = np.diff(arrays.query_start_loc)
    prefills = queries > 1
    fields: dict[str, Any] = {
        "num_prefills": int(prefills.sum()),
        "num_prefill_tokens": int(queries[prefills].sum()),
        "num_decode_tokens": int(queries[~prefills].sum()),
        "seq_lens": arrays.seq_lens.tolist(),
        "seq_lens_tensor": arena.tensors["seq_lens_tensor"],
        "max_prefill_seq_len": int(arrays.seq_lens[prefills].max(initial=0)),
        "max_decode_seq_len": int(arrays.seq_lens[~prefills].max(initial=0)) + beyond,
        "block_tables": arena.tensors["block_tables"],
    }
    cls: type[DecoderMetadata] = DecoderMetadata
    if not params["decoder_only"] or needed_fields(case):
        cls = EncoderDecoderMetadata
        fields |= {
            "encoder_seq_lens": encoder.tolist(),
            "max_encoder_seq_len": int(encoder.max(initial=0)) + beyond,
            "num_encoder_tokens": 0 if captured else int(encoder.sum()),
        }
        fields |= {name: arena.tensors[name] for name in (LENGTHS[1], *CROSS_FIELDS)}
    needed = needed_fields(case)
    fields |= {name: None for name in params["absent"] if name in fields and name not in needed}
    args: dict[str, Any] = {"attn_metadata": _metadata(cls, fields, params.get("assigned", False))}
    if case.operation == ARGS:
        args["is_prompt"] = params["is_prompt"]
    if case.operation in (ARGS, COUNTS):
        args["attn_type"] = params["attn_type"]
    return Call(args, arena=arena, facts=_SideFacts(fields=fields, attn_type=params["attn_type"]))


def _metadata(cls: type[DecoderMetadata], values: dict[str, Any], assigned: bool) -> Any:
    """Return an instance of the class, or of the one without an encoder's fields with all set."""
    if not assigned:
        return cls(**values)
    metadata = DecoderMetadata(**{f.name: values[f.name] for f in fields(DecoderMetadata)})
    vars(metadata).update(values)
    return metadata
