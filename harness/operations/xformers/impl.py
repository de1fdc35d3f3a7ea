"""Operation of SPEC.md section 8: `XFormersAttentionImpl`, cache write and attention of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.cases.layers.attention import (
    CACHE,
    KEY,
    OUT,
    OUT_DTYPES,
    QUERY,
    VALUE,
    AttentionInputs,
    Shape,
    with_dense_block_ids,
)
from attnproof.harness.cases.layers.xformers_step import (
    decode_mask,
    impl_arguments,
    import_xformers,
    make_layer,
    with_supported_head_size,
)
from attnproof.harness.consumer.attention import attention_violations, new_key_violations
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked, bound
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.xformers import impl_cases
from attnproof.harness.operations.xformers.decode_mask import PACKAGE
from attnproof.harness.operations.xformers.impl_diagnosis import diagnose_step
from attnproof.harness.operations.xformers.impl_faults import FAULTS
from attnproof.harness.operations.xformers.impl_invariants import step_violations
from attnproof.harness.operations.xformers.metadata import fields_of
from attnproof.harness.operations.xformers.metadata_views import Split, split_of
from attnproof.reference.shared import XFormersAttentionMetadata

_ATTRIBUTES = (
    "num_heads",
    "head_size",
    "num_kv_heads",
    "num_queries_per_kv",
    "sliding_window",
    "kv_cache_dtype",
)


@dataclass(frozen=True, kw_only=True)
class _StepFacts(Facts):
    attention: AttentionInputs
    params: dict[str, Any]
    pattern: int
    split: Split
    before: dict[str, torch.Tensor]
    """Cache and output before the call."""
    exact: bool = False
    """True if the output is float64, for the reference."""


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = with_dense_block_ids(batch_of(case)), with_supported_head_size(case.params)
    shape = Shape.of(params)
    attention = AttentionInputs(batch, shape, "computed")
    out_dtype = OUT_DTYPES.get(params["out"], shape.dtype)
    pieces = attention.pieces(
        pattern, spare_rows=params["spare_rows"], gap=params["gap"], out_dtype=out_dtype
    )
    metadata, arena = lay_out(batch, pattern, device, more=pieces)
    split = split_of(batch)
    rows = 0 if params.get("no_mask") else split.rows
    mask = decode_mask(metadata, rows, batch.block_size)
    fields = fields_of(metadata, split, mask)
    tensor = {name: attention.tensor(arena.tensors[name]) for name in (QUERY, KEY, VALUE)}
    output = arena.tensors[OUT].view(out_dtype)
    step = {
        "layer": make_layer(shape, device),
        **{name: tensor[name] for name in (QUERY, KEY, VALUE)},
        CACHE: attention.cache_tensor(arena.tensors[CACHE]),
        "attn_metadata": None if params["profile"] else XFormersAttentionMetadata(**fields),
        "output": output.flatten(1) if params["flat"] else output,
    }
    return Call(
        {"constants": impl_arguments(shape, params), "step": step},
        arena=arena,
        written=frozenset({CACHE, OUT}),
        facts=_StepFacts(
            attention=attention,
            params=params,
            pattern=pattern,
            split=split,
            before={name: arena.tensors[name].clone() for name in (CACHE, OUT)},
        ),
    )


def _run(offered: Any, call: Call) -> Outputs:
    """Make the layer's implementation and run the step."""
    constants, step = call["constants"], call["step"]
    impl = offered(**constants)
    outputs: Outputs = {name: getattr(impl, name, MISSING) for name in _ATTRIBUTES}
    outputs |= {name: float(getattr(impl, name)) for name in ("scale", "logits_soft_cap")}
    tensors = isinstance(step[CACHE], torch.Tensor) and isinstance(step["output"], torch.Tensor)
    if constants["kv_cache_dtype"] != "auto" and tensors:
        _run_earlier_step(impl, step)
    returned = impl.forward(**step)
    outputs["returned"] = _is(returned, step["output"])
    return outputs


def _run_earlier_step(impl: Any, step: dict[str, Any]) -> None:
    """Run a step with other scales and memory: what it leaves behind must not be used again."""
    layer = copy(step["layer"])
    for name in ("_k_scale", "_v_scale"):
        setattr(layer, name, 2 * getattr(layer, name))
    own = {name: step[name].clone() for name in (CACHE, "output")}
    impl.forward(**step | own | {"layer": layer})


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return `forward` of a layer's long-lived implementation."""
    constants, step = call["constants"], call["step"]
    return bound(offered(**constants).forward, **step)


def _clocked_outputs(call: Call, returned: Any) -> Outputs:
    """Return the outputs of one `forward`."""
    return _outputs(call, {"returned": _is(returned, call["step"]["output"])})


def _is(returned: Any, output: torch.Tensor) -> bool:
    if not isinstance(returned, torch.Tensor) or returned.shape != output.shape:
        return False
    return returned.data_ptr() == output.data_ptr()


def _for_reference(call: Call) -> None:
    step = call["step"]
    exact = torch.zeros_like(
        step["output"], dtype=torch.float64, memory_format=torch.contiguous_format
    )
    call.replace("step", step | {"output": exact})
    call.facts = replace(call.facts, exact=True)


def _outputs(call: Call, result: Outputs) -> Outputs:
    step, arena = call["step"], call.arena
    attention, before = call.facts.attention, call.facts.before
    attended = 0 if step["attn_metadata"] is None else attention.batch.num_tokens
    if step["output"].numel() != step["query"].numel():
        raise ValueError("an output of another size was accepted")
    output = step["output"].reshape(step["query"].shape)[:attended]
    if not call.facts.exact:
        # A wider result must meet the tolerance of the queries' dtype.
        output = output.to(step["query"].dtype)
    rest = arena.tensors[OUT][attended:]
    return result | {
        "kv_cache": attention.cache_words(arena.tensors[CACHE]),
        "output": output,
        "rest of output kept": torch.equal(rest, before[OUT][attended:]),
    }


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare attention with the batch's numbers, and read new keys back through its table."""
    constants, step = call["constants"], call["step"]
    if step["attn_metadata"] is None:
        return
    params, attention = call.facts.params, call.facts.attention
    yield from attention_violations(
        attention,
        step["query"],
        outputs["output"],
        "output",
        scale=constants["scale"],
        window=params["window"],
        soft_cap=params["soft_cap"],
    )
    yield from new_key_violations(attention, outputs["kv_cache"], "kv_cache")


xformers_attention_impl = Operation(
    name=impl_cases.NAME,
    section="8",
    summary="one layer's engine step: cache write of new keys and values, then attention",
    inputs=Inputs(
        params=impl_cases.ImplParams,
        whole_contexts=True,
        problem=impl_cases.problem,
        cases=impl_cases.cases,
        boundaries=impl_cases.boundaries,
        large=impl_cases.large,
        from_batch=impl_cases.steps,
        faults=FAULTS,
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _clocked_outputs),
        prepare=_prepare,
        outputs=_outputs,
        use=_run,
        methods=("forward",),
    ),
    contract=Contract(
        invariants=step_violations,
        consume=_consumed,
        tolerant=frozenset({"output"}),
        for_reference=_for_reference,
        diagnose=diagnose_step,
        may_alias=frozenset({"output", "kv_cache"}),
    ),
    bench=Bench(cases=lambda _batch: (), models=impl_cases.timed_models),
    built_in=BuiltIn(kernels=True, package=PACKAGE, load=import_xformers),
)

OPERATIONS = (xformers_attention_impl,)
