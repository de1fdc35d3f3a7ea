"""Operations of SPEC.md sections 1 and 7: behaviour that subclasses of abstract classes inherit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import batch_of

BUILDER, BACKEND, METADATA = ("AttentionMetadataBuilder", "AttentionBackend", "AttentionMetadata")
_SHARED = "an abstract class: there is nothing to make faster"
_NO_CASCADE = (64, [1, 1], 32, 8, False, False, False, 132)


def _builder_case(batch: Batch, **params: Any) -> Case:
    """Return a case; `spec` is the draft tokens per step, -1 for no number, None for no config."""
    plain = {"threshold": 1, "spec": None, "as_decode": False, "draft_index": 0}
    return Case(BUILDER, batch, plain | params)


@st.composite
def _builder_cases(draw: st.DrawFn) -> Case:
    return _builder_case(
        draw(batches(max_requests=2)),
        threshold=draw(st.integers(1, 5)),
        spec=draw(st.none() | st.integers(-1, 5)),
        as_decode=draw(st.booleans()),
        draft_index=draw(st.integers(0, 3)),
    )


def _builder_boundaries() -> Iterator[tuple[str, Case]]:
    batch = make_batch([1, 5], [3, 0], 2)
    yield "no speculative config", _builder_case(batch, as_decode=True)
    yield "draft tokens count as decodes", _builder_case(batch, spec=3, as_decode=True)
    yield "draft tokens do not count", _builder_case(batch, spec=3)
    yield (
        "threshold above the draft tokens",
        _builder_case(batch, threshold=6, spec=3, as_decode=True),
    )
    yield (
        "threshold below the draft tokens",
        _builder_case(batch, threshold=2, spec=2, as_decode=True),
    )
    yield "no number of draft tokens", _builder_case(batch, spec=-1, as_decode=True)
    yield "later draft step", _builder_case(batch, draft_index=2)


@dataclass(frozen=True, kw_only=True)
class _BuilderFacts(Facts):
    spec: int | None
    """Draft tokens of the speculative config, -1 for no number, None without a config."""


def _prepare_builder(case: Case, pattern: int, device: str) -> Call:
    metadata, arena = lay_out(batch_of(case), pattern, device)
    spec, params = case.params["spec"], case.params
    config = SimpleNamespace(num_speculative_tokens=None if spec == -1 else spec)
    vllm_config = SimpleNamespace(speculative_config=None if spec is None else config)
    return Call(
        {
            "vllm_config": vllm_config,
            "device": torch.device(device),
            "threshold": params["threshold"],
            "as_decode": params["as_decode"],
            "metadata": metadata,
            "draft_index": params["draft_index"],
        },
        arena=arena,
        facts=_BuilderFacts(spec=spec),
    )


def _drive_builder(offered: Any, call: Call) -> Outputs:
    """Instantiate a subclass whose `build` returns its arguments, and return its outputs."""
    vllm_config, device, threshold, as_decode, metadata, draft_index = call.args.values()

    class Builder(offered):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._init_reorder_batch_threshold(threshold, supports_spec_as_decode=as_decode)

        def build(
            self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> Any:
            return [common_prefix_len, common_attn_metadata is metadata, fast_build]

    spec = SimpleNamespace(block_size=16)
    made = Builder(spec, ["layer.0"], vllm_config, device)
    default = Builder(spec, ["layer.0"], vllm_config, device)
    default._init_reorder_batch_threshold()
    return {
        "cudagraph_support": int(offered.cudagraph_support.value),
        "class's reorder_batch_threshold": Builder.reorder_batch_threshold,
        "reorder_batch_threshold": made.reorder_batch_threshold,
        "default reorder_batch_threshold": default.reorder_batch_threshold,
        "kept": [made.kv_cache_spec is spec, made.vllm_config is vllm_config],
        "layer_names": list(made.layer_names),
        "device": str(made.device),
        "build_for_cudagraph_capture": made.build_for_cudagraph_capture(metadata),
        "build_for_drafting": made.build_for_drafting(metadata, draft_index),
        "use_cascade_attention": made.use_cascade_attention(*_NO_CASCADE),
        "abstract": sorted(offered.__abstractmethods__),
    }


def _builder_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    spec = call.facts.spec
    raised = call["as_decode"] and (spec or -1) >= 0
    threshold = max(call["threshold"], 1 + spec if raised else 0)
    expected = {
        "cudagraph_support": 0,
        "class's reorder_batch_threshold": None,
        "reorder_batch_threshold": threshold,
        "default reorder_batch_threshold": 1,
        "build_for_cudagraph_capture": [0, True, False],
        "build_for_drafting": [0, True, True],
        "use_cascade_attention": False,
        "abstract": ["__init__", "build"],
    }
    yield from _unexpected(outputs, expected)


def _unexpected(outputs: Outputs, expected: dict[str, Any]) -> Iterator[Violation]:
    for name, value in expected.items():
        if type(outputs[name]) is not type(value) or outputs[name] != value:
            yield Violation(name, f"is {outputs[name]!r}, not {value!r}")


def _same(_call: Call, result: Outputs) -> Outputs:
    return result


attention_metadata_builder = Operation(
    name=BUILDER,
    section="7",
    summary="base class of V1 metadata builders: threshold, capture, drafting",
    inputs=Inputs(
        cases=_builder_cases,
        boundaries=_builder_boundaries,
        from_batch=lambda batch: iter([_builder_case(batch)]),
    ),
    call=ClassCall(prepare=_prepare_builder, outputs=_same, use=_drive_builder),
    contract=Contract(invariants=_builder_violations),
    bench=Bench(never=_SHARED),
    built_in=BuiltIn(shared=_SHARED),
)

_BACKEND_METHODS = (
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
class _Made:
    first: int
    second: int = 7


def _backend_case(first: int, second: int | None) -> Case:
    return Case(BACKEND, None, {"first": first, "second": second})


def _drive_backend(offered: Any, call: Call) -> Outputs:
    """Make a backend that defines only its metadata class, and return its outputs."""
    first, second = call.args.values()
    methods: dict[str, Any] = {name: staticmethod(lambda *_: None) for name in _BACKEND_METHODS}
    methods["get_metadata_cls"] = staticmethod(lambda *_: _Made)
    names = {"__module__": "some.module", "__qualname__": "Outer.Backend"}
    backend: Any = type("Backend", (offered,), {**methods, **names})
    keywords = {} if second is None else {"second": second}
    made = backend.make_metadata(first, **keywords)
    try:
        order = backend.get_kv_cache_stride_order()
    except NotImplementedError:
        order = "not implemented"
    return {
        "made": [type(made) is _Made, made.first, made.second],
        "full_cls_name": backend.full_cls_name(),
        "get_kv_cache_stride_order": order,
        "accept_output_buffer": offered.accept_output_buffer,
        "abstract": sorted(offered.__abstractmethods__),
    }


def _backend_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    first, second = call.args.values()
    expected = {
        "made": [True, first, 7 if second is None else second],
        "full_cls_name": ("some.module", "Outer.Backend"),
        "get_kv_cache_stride_order": "not implemented",
        "accept_output_buffer": False,
        "abstract": sorted(_BACKEND_METHODS),
    }
    yield from _unexpected(outputs, expected)


attention_backend = Operation(
    name=BACKEND,
    section="1",
    summary="base class of attention backends: metadata, name, cache layout",
    inputs=Inputs(
        cases=lambda: st.builds(_backend_case, st.integers(0, 9), st.none() | st.integers(0, 9)),
        boundaries=lambda: [
            ("by position", _backend_case(3, None)),
            ("by keyword too", _backend_case(3, 0)),
        ],
        from_batch=lambda batch: iter([_backend_case(batch.num_requests, None)]),
    ),
    call=ClassCall(
        prepare=lambda case, _pattern, _device: Call(
            {name: case.params[name] for name in ("first", "second")}
        ),
        outputs=_same,
        use=_drive_backend,
    ),
    contract=Contract(invariants=_backend_violations),
    bench=Bench(never=_SHARED),
    built_in=BuiltIn(shared=_SHARED),
)

_INHERITED = (
    "num_prefills",
    "num_prefill_tokens",
    "num_decode_tokens",
    "slot_mapping",
    "multi_modal_placeholder_index_maps",
    "enable_kv_scales_calculation",
)


def _metadata_case(skip: list[str] | None) -> Case:
    return Case(METADATA, None, {"skip": skip})


def _drive_metadata(offered: Any, call: Call) -> Outputs:
    """Instantiate a subclass with one more field, and return it as a dictionary."""
    skip = call["skip_fields"]

    @dataclass
    class Metadata(offered):  # type: ignore[misc]
        block_tables: Any = None

        prefill_metadata = decode_metadata = None

    slots = torch.arange(3)
    made = Metadata(1, 2, 1, slots, {"image": [3]}, True, block_tables=[[5]])
    given = made.asdict_zerocopy() if skip is None else made.asdict_zerocopy(skip)
    return {
        "fields": [f.name for f in fields(offered)],
        "names": list(given),
        "not copied": all(value is getattr(made, name) for name, value in given.items()),
    }


def _metadata_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    names = [*_INHERITED, "block_tables"]
    left = [name for name in names if name not in (call["skip_fields"] or ())]
    expected = {"fields": list(_INHERITED), "names": left, "not copied": True}
    yield from _unexpected(outputs, expected)


def _prepare_metadata(case: Case, _pattern: int, _device: str) -> Call:
    skip = case.params["skip"]
    given = None if skip is None else set(skip)
    return Call({"skip_fields": given}, plain={"skip_fields": given})


_NAMES = st.sampled_from((*_INHERITED, "block_tables", "unknown"))
attention_metadata = Operation(
    name=METADATA,
    section="1",
    summary="V0 metadata as a dictionary whose values are not copied",
    inputs=Inputs(
        cases=lambda: st.builds(
            _metadata_case, st.none() | st.lists(_NAMES, max_size=3, unique=True)
        ),
        boundaries=lambda: [
            ("all fields", _metadata_case(None)),
            ("none skipped", _metadata_case([])),
            ("a tensor skipped", _metadata_case(["slot_mapping", "num_prefills"])),
            ("a field of the subclass skipped", _metadata_case(["block_tables"])),
            ("an unknown field skipped", _metadata_case(["unknown"])),
        ],
        from_batch=lambda _batch: iter([_metadata_case(None)]),
    ),
    call=ClassCall(prepare=_prepare_metadata, outputs=_same, use=_drive_metadata),
    contract=Contract(invariants=_metadata_violations),
    bench=Bench(never=_SHARED),
    built_in=BuiltIn(shared=_SHARED),
)

OPERATIONS = (attention_metadata_builder, attention_backend, attention_metadata)
