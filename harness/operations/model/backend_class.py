"""Operation of SPEC.md section 1: behaviour inherited from `AttentionBackend`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import new_class
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.model.abstract_class import SHARED, same, unexpected
from attnproof.harness.operations.shared.params import Params

NAME = "AttentionBackend"

_METHODS = (
    "copy_blocks",
    "get_builder_cls",
    "get_impl_cls",
    "get_kv_cache_shape",
    "get_metadata_cls",
    "get_name",
    "get_state_cls",
    "swap_blocks",
)


@dataclass
class _Metadata:
    first: int
    second: int = 7


class _Params(Params):
    first: Count
    second: Count | None


def _case(first: int, second: int | None) -> Case:
    return Case(NAME, None, {"first": first, "second": second})


def _use(offered: Any, call: Call) -> Outputs:
    """Return the outputs of a backend that defines only its metadata class."""
    first, second = call["first"], call["second"]
    methods: dict[str, Any] = {name: staticmethod(lambda *_: None) for name in _METHODS}
    methods["get_metadata_cls"] = staticmethod(lambda *_: _Metadata)
    names = {"__module__": "some.module", "__qualname__": "Outer.Backend"}
    added = {**methods, **names}
    backend: Any = new_class("Backend", (offered,), exec_body=lambda body: body.update(added))
    keywords = {} if second is None else {"second": second}
    metadata = backend.make_metadata(first, **keywords)
    try:
        order = backend.get_kv_cache_stride_order()
    except NotImplementedError:
        order = "not implemented"
    return {
        "made": [type(metadata) is _Metadata, metadata.first, metadata.second],
        "full_cls_name": backend.full_cls_name(),
        "get_kv_cache_stride_order": order,
        "accept_output_buffer": offered.accept_output_buffer,
        "abstract": sorted(offered.__abstractmethods__),
    }


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    first, second = call["first"], call["second"]
    expected = {
        "made": [True, first, 7 if second is None else second],
        "full_cls_name": ("some.module", "Outer.Backend"),
        "get_kv_cache_stride_order": "not implemented",
        "accept_output_buffer": False,
        "abstract": sorted(_METHODS),
    }
    yield from unexpected(outputs, expected)


attention_backend = Operation(
    name=NAME,
    section="1",
    summary="base class of attention backends: metadata, name, cache layout",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=lambda: st.builds(_case, st.integers(0, 9), st.none() | st.integers(0, 9)),
        boundaries=lambda: [
            ("by position", _case(3, None)),
            ("by keyword too", _case(3, 0)),
        ],
        from_batch=lambda batch: iter([_case(batch.num_requests, None)]),
    ),
    call=ClassCall(
        prepare=lambda case, _pattern, _device: Call(
            {name: case.params[name] for name in ("first", "second")}
        ),
        outputs=same,
        use=_use,
    ),
    contract=Contract(invariants=_invariants),
    bench=Bench(never=SHARED),
    built_in=BuiltIn(shared=SHARED),
)

OPERATIONS = (attention_backend,)
