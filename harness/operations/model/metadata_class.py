"""Operation of SPEC.md section 1: behaviour inherited from `AttentionMetadata`, of V0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.model.abstract_class import SHARED, same, unexpected
from attnproof.harness.operations.shared.params import Params

NAME = "AttentionMetadata"

_INHERITED = (
    "num_prefills",
    "num_prefill_tokens",
    "num_decode_tokens",
    "slot_mapping",
    "multi_modal_placeholder_index_maps",
    "enable_kv_scales_calculation",
)


_Name = Annotated[str, Meta(max_length=64)]


class _Params(Params):
    skip: Annotated[list[_Name], Meta(max_length=64)] | None


def _case(skip: list[str] | None) -> Case:
    return Case(NAME, None, {"skip": skip})


def _use(offered: Any, call: Call) -> Outputs:
    """Return the outputs of a subclass with one more field."""
    skip = call["skip_fields"]

    @dataclass
    class Metadata(offered):  # type: ignore[misc]
        block_tables: Any = None

        prefill_metadata = decode_metadata = None

    @dataclass
    class Subclass(Metadata):
        more: int = 7

    slots = torch.arange(3)
    metadata = Metadata(1, 2, 1, slots, {"image": [3]}, True, block_tables=[[5]])
    by_name = metadata.asdict_zerocopy() if skip is None else metadata.asdict_zerocopy(skip)
    return {
        "fields": [f.name for f in fields(offered)],
        "names": list(by_name),
        "names of a subclass": list(Subclass(1, 2, 1, slots, {}, True).asdict_zerocopy()),
        "not copied": all(value is getattr(metadata, name) for name, value in by_name.items()),
    }


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    names = [*_INHERITED, "block_tables"]
    left = [name for name in names if name not in (call["skip_fields"] or ())]
    expected = {
        "fields": list(_INHERITED),
        "names": left,
        "names of a subclass": [*names, "more"],
        "not copied": True,
    }
    yield from unexpected(outputs, expected)


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    skip = case.params["skip"]
    skip_fields = None if skip is None else set(skip)
    return Call({"skip_fields": skip_fields}, plain={"skip_fields": skip_fields})


_NAMES = st.sampled_from((*_INHERITED, "block_tables", "unknown"))
attention_metadata = Operation(
    name=NAME,
    section="1",
    summary="V0 metadata as a dictionary whose values are not copied",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=lambda: st.builds(_case, st.none() | st.lists(_NAMES, max_size=3, unique=True)),
        boundaries=lambda: [
            ("all fields", _case(None)),
            ("none skipped", _case([])),
            ("a tensor skipped", _case(["slot_mapping", "num_prefills"])),
            ("a field of the subclass skipped", _case(["block_tables"])),
            ("an unknown field skipped", _case(["unknown"])),
        ],
        from_batch=lambda _batch: iter([_case(None)]),
    ),
    call=ClassCall(prepare=_prepare, outputs=same, use=_use),
    contract=Contract(invariants=_invariants),
    bench=Bench(never=SHARED),
    built_in=BuiltIn(shared=SHARED),
)

OPERATIONS = (attention_metadata,)
