"""Operation of SPEC.md section 7: behaviour inherited from `AttentionMetadataBuilder`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.model.abstract_class import SHARED, same, unexpected
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Params, Positive

NAME = "AttentionMetadataBuilder"
_NO_CASCADE = (64, [1, 1], 32, 8, False, False, False, 132)


class _Params(Params):
    threshold: Positive
    spec: Annotated[int, Meta(ge=-1, le=1024)] | None
    as_decode: bool
    draft_index: Count


def _case(batch: Batch, **params: Any) -> Case:
    """Return a case; `spec` draft tokens per step, -1 for no number, None for no config."""
    plain = {"threshold": 1, "spec": None, "as_decode": False, "draft_index": 0}
    return Case(NAME, batch, plain | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(
        draw(batches(max_requests=2)),
        threshold=draw(st.integers(1, 5)),
        spec=draw(st.none() | st.integers(-1, 5)),
        as_decode=draw(st.booleans()),
        draft_index=draw(st.integers(0, 3)),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    batch = make_batch([1, 5], [3, 0], 2)
    yield "no speculative config", _case(batch, as_decode=True)
    yield "draft tokens count as decodes", _case(batch, spec=3, as_decode=True)
    yield "draft tokens do not count", _case(batch, spec=3)
    yield (
        "threshold above the draft tokens",
        _case(batch, threshold=6, spec=3, as_decode=True),
    )
    yield (
        "threshold below the draft tokens",
        _case(batch, threshold=2, spec=2, as_decode=True),
    )
    yield "no number of draft tokens", _case(batch, spec=-1, as_decode=True)
    yield "later draft step", _case(batch, draft_index=2)


@dataclass(frozen=True, kw_only=True)
class _BuilderFacts(Facts):
    spec: int | None
    """Draft tokens of the speculative config, -1 for no number, None without a config."""


def _prepare(case: Case, pattern: int, device: str) -> Call:
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


def _use(offered: Any, call: Call) -> Outputs:
    """Return the outputs of a subclass whose `build` returns its arguments."""
    threshold, as_decode, metadata = call["threshold"], call["as_decode"], call["metadata"]
    vllm_config, device = call["vllm_config"], call["device"]

    class Builder(offered):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._init_reorder_batch_threshold(threshold, supports_spec_as_decode=as_decode)

        def build(
            self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
        ) -> Any:
            return [common_prefix_len, common_attn_metadata is metadata, fast_build]

    spec = SimpleNamespace(block_size=16)
    builder = Builder(spec, ["layer.0"], vllm_config, device)
    default = Builder(spec, ["layer.0"], vllm_config, device)
    default._init_reorder_batch_threshold()
    return {
        "cudagraph_support": int(offered.cudagraph_support.value),
        "class's reorder_batch_threshold": Builder.reorder_batch_threshold,
        "reorder_batch_threshold": builder.reorder_batch_threshold,
        "default reorder_batch_threshold": default.reorder_batch_threshold,
        "kept": [builder.kv_cache_spec is spec, builder.vllm_config is vllm_config],
        "layer_names": list(builder.layer_names),
        "device": str(builder.device),
        "build_for_cudagraph_capture": builder.build_for_cudagraph_capture(metadata),
        "build_for_drafting": builder.build_for_drafting(metadata, call["draft_index"]),
        "use_cascade_attention": builder.use_cascade_attention(*_NO_CASCADE),
        "abstract": sorted(offered.__abstractmethods__),
    }


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
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
    yield from unexpected(outputs, expected)


attention_metadata_builder = Operation(
    name=NAME,
    section="7",
    summary="base class of V1 metadata builders: threshold, capture, drafting",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: iter([_case(batch)]),
    ),
    call=ClassCall(prepare=_prepare, outputs=same, use=_use),
    contract=Contract(invariants=_invariants),
    bench=Bench(never=SHARED),
    built_in=BuiltIn(shared=SHARED),
)

OPERATIONS = (attention_metadata_builder,)
