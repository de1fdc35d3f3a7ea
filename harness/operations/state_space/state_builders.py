"""Operations of SPEC.md section 17: builders of the metadata of state-space layers.

Bug classes: a state of another request or of a block behind the last token, a first chunk that
reads the state of a block's former request (K38), rows of a graph that keep an earlier step's
states, drafts that are counted as prefills.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
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
from attnproof.harness.operations.state_space.state_cases import (
    StateParams,
    prepare_states,
    problem,
    state_boundaries,
    state_cases,
    state_steps,
    unreal,
)

_OF_MAMBA2 = ("prep_initial_states", "cu_chunk_seqlen_p", "seq_idx_p", "last_chunk_indices_p")
"""Fields that the metadata of other layers lacks."""
_BY_VALUE = ("spec_token_indx", "non_spec_token_indx", "chunk_indices", "chunk_offsets")
"""Fields whose integers may have any width."""


def _outputs(cls: type[Any], call: Call, result: Any) -> Outputs:
    names = [f.name for f in fields(cls)]
    if cls is reference.MambaMetadata and call["config"].layer != "mamba2":
        names = [name for name in names if name not in _OF_MAMBA2]
    outputs = Outputs({name: getattr(result, name, MISSING) for name in names})
    for name in _BY_VALUE:
        if isinstance(outputs.get(name), torch.Tensor):
            outputs[name] = outputs[name].long()
    if cls is reference.MambaMetadata and not outputs["num_decodes"]:
        outputs["num_accepted_tokens"] = None  # nothing reads it without decodes
    return outputs


def _mamba_rows(call: Call, outputs: Outputs) -> Iterator[StateRow]:
    """Yield what the kernels of decodes and of prefills compute."""
    decodes, first = outputs["num_decodes"], outputs["num_decode_tokens"]
    states = outputs["state_indices_tensor_d"].tolist()
    offsets = _listed(outputs["query_start_loc_d"]) or [*range(decodes + 1)]
    accepted = _listed(outputs["num_accepted_tokens"]) or [None] * decodes
    if call["num_accepted_tokens"] is None or call["config"].layer == "mamba1":
        accepted = [None] * decodes  # those of the step before are not known
    for row in range(decodes):
        tokens = [*range(offsets[row], offsets[row + 1])]
        used = states[row] if accepted[row] is not None else states[row][:1]
        yield StateRow("state_indices_tensor_d", tokens, used, True, accepted[row])
    offsets = _listed(outputs["query_start_loc_p"])
    states, initial = (
        _listed(outputs[name]) for name in ("state_indices_tensor_p", "has_initial_states_p")
    )
    for row in range(outputs["num_prefills"]):
        tokens = [*range(first + offsets[row], first + offsets[row + 1])]
        yield StateRow("state_indices_tensor_p", tokens, [states[row]], initial[row])


def _gdn_rows(_call: Call, outputs: Outputs) -> Iterator[StateRow]:
    """Yield what the kernels of drafts, of decodes and of prefills compute."""
    held = {name: _listed(outputs[name]) for name in outputs}
    states, offsets = held["spec_state_indices_tensor"], held["spec_query_start_loc"]
    for row in range(outputs["num_spec_decodes"]):
        tokens = held["spec_token_indx"][offsets[row] : offsets[row + 1]]
        accepted = held["num_accepted_tokens"][row]
        yield StateRow("spec_state_indices_tensor", tokens, states[row], True, accepted)
    for row in range(outputs["num_decodes"]):
        state = held["non_spec_state_indices_tensor"][row]
        yield StateRow("non_spec_state_indices_tensor", [row], [state], True)
    others = held["non_spec_token_indx"]
    if not outputs["num_spec_decodes"]:
        decodes = outputs["num_decode_tokens"]
        others = [*range(decodes, decodes + outputs["num_prefill_tokens"])]
    states, offsets = held["prefill_state_indices"], held["prefill_query_start_loc"]
    for row, initial in enumerate(held["prefill_has_initial_state"]):
        tokens = others[offsets[row] : offsets[row + 1]]
        yield StateRow("prefill_state_indices", tokens, [states[row]], initial)


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else []


def _consumed(
    rows_of: Callable[[Call, Outputs], Iterator[StateRow]], call: Call, outputs: Outputs
) -> Iterator[Violation]:
    requests = call.facts.requests
    if rows_of is _mamba_rows:  # a prefill there may have drafts, behind another prefill
        requests = requests._replace(speculative=np.zeros_like(requests.speculative))
    yield from state_violations(requests, rows_of(call, outputs))


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
    ends = np.unique(np.concatenate([offsets, inner]))
    if int64_array(outputs["cu_chunk_seqlen_p"]).tolist() != ends.tolist():
        yield Violation("cu_chunk_seqlen_p", "does not end chunks at rows and at multiples")
    elif int64_array(outputs["seq_idx_p"]).tolist() != rows[ends[:-1]].tolist():
        yield Violation("seq_idx_p", "is not the row of the chunk's tokens")


def _builder(name: str, layers: str, cls: type[Any], rows_of: Any) -> Operation:
    return Operation(
        name=name,
        section="17",
        summary=f"builds the metadata of {layers}",
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


_LAYERS = "mamba and short-convolution layers", "gated delta net layers"
mamba_build = _builder("mamba_build", _LAYERS[0], reference.MambaMetadata, _mamba_rows)
gdn_build = _builder("gdn_build", _LAYERS[1], reference.GDNMetadata, _gdn_rows)

OPERATIONS = (mamba_build, gdn_build)
