"""Operations of SPEC.md section 17: builders of the metadata of state-space layers.

Bug classes: a state of another request or of a block behind the last token, a first chunk that
reads the state of a block's former request (K38), rows of a graph that keep an earlier step's
states, drafts that are counted as prefills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attnproof import reference
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.consumer.states import StateRow, state_violations
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.operation import Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.state_space.state_boundaries import state_boundaries
from attnproof.harness.operations.state_space.state_cases import (
    StateParams,
    prepare_states,
    problem,
    state_cases,
    state_steps,
    unreal,
)

_OF_MAMBA2 = (
    "prep_initial_states",
    "cu_chunk_seqlen_p",
    "seq_idx_p",
    "last_chunk_indices_p",
    "checkpoint_chunk_idx",
)
"""Fields that the metadata of other layers lacks."""
_BY_VALUE = ("spec_token_indx", "non_spec_token_indx", "chunk_indices", "chunk_offsets")
"""Fields whose integers may have any width."""


def _outputs(cls: type[Any], call: Call, result: Any) -> Outputs:
    return outputs_of(cls, call["config"].layer, result)


def outputs_of(cls: type[Any], layer: str, result: Any) -> Outputs:
    """Return the fields that are compared of a candidate's metadata."""
    names = [f.name for f in fields(cls)]
    if cls is reference.MambaMetadata and layer != "mamba2":
        names = [name for name in names if name not in _OF_MAMBA2]
    outputs = Outputs({name: getattr(result, name, MISSING) for name in names})
    for name in _BY_VALUE:
        if isinstance(outputs.get(name), torch.Tensor):
            outputs[name] = outputs[name].long()
    if cls is reference.MambaMetadata and not outputs["num_decodes"]:
        outputs["num_accepted_tokens"] = None  # nothing reads it without decodes
    if outputs.get("num_spec_decodes") == 0:
        outputs["num_accepted_tokens"] = None
    return outputs


class _Fields:
    """Fields of a candidate's metadata as lists, empty where they are None."""

    def __init__(self, call: Call, outputs: Outputs) -> None:
        self.outputs = outputs
        self.counted = call.facts.counted

    def __getattr__(self, name: str) -> Any:
        value = self.outputs[name]
        return value.tolist() if isinstance(value, torch.Tensor) else value or []

    @property
    def count(self) -> int:
        """Number of rows that a kernel of decodes runs."""
        return int(self.outputs["num_decodes"])


_TOKENS = range(2**40)
"""Tokens in the order of the batch."""


def _rows(
    field: str,
    states: list[Any],
    offsets: Sequence[int],
    tokens: Sequence[int] = _TOKENS,
    *,
    initial: Sequence[bool] = (),
    accepted: Sequence[int] = (),
) -> Iterator[StateRow]:
    """Yield the rows of a kernel: their tokens lie between offsets; all have a state by default."""
    for row, (start, end) in enumerate(pairwise(offsets)):
        blocks = states[row] if isinstance(states[row], list) else [states[row]]
        kept = accepted[row] if accepted else None
        used = blocks[:1] if kept is None else blocks
        has_state = initial[row] if initial else True
        yield StateRow(field, [*tokens[start:end]], used, has_state, kept)


def _mamba_rows(held: Any) -> Iterator[StateRow]:
    offsets = held.query_start_loc_d or range(held.count + 1)
    accepted = held.num_accepted_tokens if held.counted else ()
    field = "state_indices_tensor_d"
    yield from _rows(field, held.state_indices_tensor_d, offsets, accepted=accepted)
    field, tokens = "state_indices_tensor_p", _TOKENS[held.num_decode_tokens or 0 :]
    states, initial = held.state_indices_tensor_p, held.has_initial_states_p
    yield from _rows(field, states, held.query_start_loc_p, tokens, initial=initial)


def _lightning_rows(held: Any) -> Iterator[StateRow]:
    first, starts, states = held.count, held.query_start_loc, held.state_indices_tensor
    field, offsets, accepted = "state_indices_tensor", range(first + 1), ()
    prefill_field, prefill_states = field, states[first:]
    if "state_indices_tensor_d" in held.outputs:
        field, states = "state_indices_tensor_d", held.state_indices_tensor_d
        prefill_field, prefill_states = "state_indices_tensor_p", held.state_indices_tensor_p
        offsets, accepted = held.query_start_loc_d or offsets, held.num_accepted_tokens
    yield from _rows(field, states, offsets, accepted=accepted)
    rows = zip(pairwise(starts), held.seq_lens, strict=True)
    initial = [length > end - start for (start, end), length in rows][first:]
    yield from _rows(prefill_field, prefill_states, starts[first:], initial=initial)


def _spec_rows(held: Any) -> Iterator[StateRow]:
    states, offsets = held.spec_state_indices_tensor, held.spec_query_start_loc
    tokens, accepted = held.spec_token_indx or _TOKENS, held.num_accepted_tokens
    yield from _rows("spec_state_indices_tensor", states, offsets, tokens, accepted=accepted)


def _gdn_rows(held: Any) -> Iterator[StateRow]:
    yield from _spec_rows(held)
    states, offsets = held.non_spec_state_indices_tensor, range(held.count + 1)
    yield from _rows("non_spec_state_indices_tensor", states, offsets)
    tokens = held.non_spec_token_indx or _TOKENS[held.num_decode_tokens or 0 :]
    states, initial = held.prefill_state_indices, held.prefill_has_initial_state
    offsets = held.prefill_query_start_loc
    yield from _rows("prefill_state_indices", states, offsets, tokens, initial=initial)


def _kda_rows(held: Any) -> Iterator[StateRow]:
    yield from _spec_rows(held)
    offsets, initial = range(held.count + 1), ()
    if held.num_prefills:  # one kernel runs them and the decodes
        offsets, initial = held.non_spec_query_start_loc, held.has_initial_state
    field, states = "non_spec_state_indices_tensor", held.non_spec_state_indices_tensor
    tokens = held.non_spec_token_indx or _TOKENS
    yield from _rows(field, states, offsets, tokens, initial=initial)


def _short_conv_rows(held: Any) -> Iterator[StateRow]:
    yield from _spec_rows(held)
    field, states, first = "state_indices_tensor", held.state_indices_tensor, held.count
    tokens, initial = held.non_spec_token_indx or _TOKENS, held.has_initial_states_d
    yield from _rows(field, states, range(first + 1), tokens, initial=initial)
    offsets, initial = held.query_start_loc_p, held.has_initial_states_p
    tokens = tokens[held.num_decode_tokens or 0 :]
    yield from _rows(field, states[first:], offsets, tokens, initial=initial)


_IN_ORDER = (_mamba_rows, _lightning_rows)
"""Builders to which a row behind a prefill is a prefill, whatever drafts it has."""


def _consumed(
    rows_of: Callable[[Any], Iterator[StateRow]], call: Call, outputs: Outputs
) -> Iterator[Violation]:
    requests = call.facts.requests
    if rows_of in _IN_ORDER:
        requests = requests._replace(speculative=np.zeros_like(requests.speculative))
    yield from state_violations(requests, rows_of(_Fields(call, outputs)))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require chunks of one row each, which end at multiples of positions."""
    if not isinstance(outputs.get("cu_chunk_seqlen_p"), torch.Tensor):
        return
    offsets = int64_array(outputs["query_start_loc_p"])
    first = outputs["num_decodes"]
    batch = call.facts.metadata
    computed = int64_array(batch.seq_lens - batch.query_start_loc.diff())[first:]
    rows = np.repeat(np.arange(len(computed)), np.diff(offsets))
    tokens = np.arange(offsets[-1])
    positions = tokens - offsets[rows] + computed[rows]
    inner = tokens[positions % call["config"].chunk_size == 0]
    chunks = int64_array(outputs["cu_chunk_seqlen_p"])
    exporting = _exporting_chunks(outputs)
    ends = np.unique(np.concatenate([offsets, inner, chunks[exporting + 1]]))
    exported = positions[chunks[exporting[exporting > 0] + 1] - 1] + 1
    if (exported % call["config"].cache_hit_alignment_tokens).any():
        yield Violation("checkpoint_chunk_idx", "exports a state at which no request resumes")
    if chunks.tolist() != ends.tolist():
        yield Violation("cu_chunk_seqlen_p", "does not end chunks at rows and at multiples")
    elif int64_array(outputs["seq_idx_p"]).tolist() != rows[ends[:-1]].tolist():
        yield Violation("seq_idx_p", "is not the row of the chunk's tokens")


def _exporting_chunks(outputs: Outputs) -> np.ndarray:
    """Return the chunks whose states are exported; 0 is that of rows without one too."""
    indices = outputs["checkpoint_chunk_idx"]
    return int64_array(indices) if isinstance(indices, torch.Tensor) else np.zeros(0, np.int64)


def _builder(name: str, layers: str, cls: type[Any], rows_of: Any) -> Operation:
    return Operation(
        name=name,
        section="17",
        summary=f"builds the metadata of {layers} layers",
        inputs=Inputs(
            params=StateParams,
            problem=problem,
            unreal=unreal,
            cases=partial(state_cases, name),
            boundaries=partial(state_boundaries, name),
            from_batch=partial(state_steps, name),
            faults=faults_of(getattr(reference, name), prepare_states),
        ),
        call=FunctionCall(prepare=prepare_states, outputs=partial(_outputs, cls)),
        contract=Contract(
            consume=partial(_consumed, rows_of),
            invariants=_invariants if cls is reference.MambaMetadata else None,
            may_alias=frozenset(f.name for f in fields(cls)),
            may_sync=lambda _: True,
        ),
    )


OPERATIONS = (
    _builder("mamba_build", "mamba and short-convolution", reference.MambaMetadata, _mamba_rows),
    _builder("linear_build", "lightning attention", reference.LinearMetadata, _lightning_rows),
    _builder(
        "bailing_build",
        "lightning attention with drafts",
        reference.BailingMetadata,
        _lightning_rows,
    ),
    _builder("gdn_build", "gated delta net", reference.GDNMetadata, _gdn_rows),
    _builder("kda_build", "Kimi delta attention", reference.KDAMetadata, _kda_rows),
    _builder(
        "ple_short_conv_build",
        "embedding convolution",
        reference.PLEShortConvMetadata,
        _short_conv_rows,
    ),
)
