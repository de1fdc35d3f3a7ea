"""Operation of SPEC.md section 8: `XFormersAttentionBackend` through whole engine steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.cases.layers.attention import (
    CACHE,
    KEY,
    OUT,
    QUERY,
    SIMPLEST_LAYER,
    VALUE,
    AttentionInputs,
    Shape,
    num_blocks,
    with_dense_block_ids,
)
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.cases.layers.xformers_step import (
    impl_arguments,
    import_xformers,
    make_layer,
    shortened_batch,
    with_supported_head_size,
)
from attnproof.harness.consumer.attention import attention_violations, new_key_violations
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation, in_child
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import LayerParams, Some, layer_problem
from attnproof.harness.operations.xformers.decode_mask import PACKAGE
from attnproof.harness.operations.xformers.impl_cases import layers
from attnproof.harness.operations.xformers.impl_invariants import (
    range_violations,
    written_violations,
)
from attnproof.reference.interface import MetadataError

NAME = "XFormersAttentionBackend"
_CLASSES = {
    "get_impl_cls": "XFormersAttentionImpl",
    "get_builder_cls": "XFormersAttentionMetadataBuilder",
    "get_metadata_cls": "XFormersAttentionMetadata",
    "get_state_cls": "CommonAttentionState",
}
_PAGES = (16, 32, 48, 64, 128)
_PLAIN = SIMPLEST_LAYER | {"window": 0, "soft_cap": 0.0, "page": 0, "more": []}
_OUTPUT, _REST = "output", "rest of output kept"


@dataclass(frozen=True, kw_only=True)
class _BackendFacts(Facts):
    steps: list[Any]
    """Attention, metadata and tensors of each engine step."""
    params: dict[str, Any]
    pattern: int
    device: torch.device
    before: torch.Tensor
    """Cache before the first step."""


class _Params(LayerParams, kw_only=True):
    page: Annotated[int, Meta(ge=0, le=len(_PAGES) - 1)]
    more: Annotated[list[Some], Meta(max_length=16)]


def _problem(case: Case) -> str:
    return layer_problem(steps_of(batch_of(case), case.params)[-1], case.params)


def _case(batch: Batch, **params: Any) -> Case:
    """Return a case; `page` indexes the page sizes.

    `more` has an entry for each later engine step: queries of each request in an even row.
    """
    return Case(NAME, batch, _PLAIN | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    page = draw(st.sampled_from((0, 0, 0, 1, 2, 3, 4)))
    batch = shortened_batch(draw(batches(max_requests=2)))
    params = draw(layers(_PAGES[page]))
    params |= {"num_kv_heads": 1, "group": min(params["group"], 2)}
    more = draw(st.sampled_from(([], [], [1], [3])))
    return _case(batch, page=page, more=more, **params)


def _boundaries() -> Iterator[tuple[str, Case]]:
    whole = make_batch([1, 1, 4], [20, 15, 2], 16, padded_requests=1, padded_tokens=2)
    yield "decode, prefill and padding in one batch", _case(whole, group=2)
    prompt = make_batch([5, 3], [0, 0], 16, order="descending")
    yield "a prompt, then its decodes", _case(prompt, more=[1, 1], group=2)
    yield "a prompt in chunks", _case(make_batch([9], [0], 16), more=[9, 9])
    full = make_batch([16, 1], [0, 15], 16, order="descending")
    yield "a block filled, then the next one begun", _case(full, more=[1])
    idle = make_batch([1, 0, 3], [6, 4, 0], 16)
    yield "idle rows, then all decode (E23)", _case(idle, more=[1])
    evened = make_batch([1, 1], [20, 3], 16, padded_requests=1, padded_tokens=1)
    yield "as many tokens as rows, one of them padding (E23)", _case(evened)
    yield "one decode, its lengths apart in memory", _case(make_batch([1], [8], 16, strided=True))
    yield "no requests", _case(make_batch([], [], 16), more=[1])
    windowed = {"window": 3, "soft_cap": 2.0}
    yield "window and soft cap over steps (K24, E14)", _case(prompt, more=[1], **windowed)
    fp8 = {"cache": "fp8", "k_scale": 0.25, "v_scale": 0.5}
    yield "fp8 cache over steps (E25)", _case(prompt, more=[1], **fp8)
    for page, size in enumerate(_PAGES[1:], 1):
        edge = make_batch([1, 2], [size - 1, size - 2], 16)
        yield f"pages of {size}, crossed by a step", _case(edge, page=page, more=[1])


def _large() -> Iterator[tuple[str, Case]]:
    """Yield a prompt of real size and the first tokens behind it."""
    llama = MODELS[0].layer | {"dtype": "bfloat16"}
    yield "a long prompt, then decodes", _case(make_batch([400], [0], 16), more=[1, 1], **llama)


def _steps(batch: Batch) -> Iterator[Case]:
    if batch.num_tokens % 3 == 0:
        yield _case(shortened_batch(batch), more=[1], seed=batch.num_tokens % 50)


def steps_of(batch: Batch, params: dict[str, Any]) -> list[Batch]:
    """Return the batch of each engine step: queries of one step are computed in the next.

    Every step has the blocks of the last step, so that block tables stay the same.
    """
    size = _PAGES[params["page"] % len(_PAGES)]
    queries, computed = [list(batch.query_lens)], [list(batch.computed_lens)]
    for more in params["more"]:
        computed.append([c + q for c, q in zip(computed[-1], queries[-1], strict=True)])
        queries.append([max(1, more) if row % 2 == 0 else 1 for row in range(len(computed[0]))])
    last = make_batch(queries[-1], computed[-1], size, order="descending")
    last = with_dense_block_ids(last)
    steps = []
    for query_lens, lens in zip(queries, computed, strict=True):
        lists = {"query_lens": tuple(query_lens), "computed_lens": tuple(lens)}
        plain = {"block_size": size, "blocks": last.blocks, "subclassed": False}
        plain |= {"later": False, "prompt_lens": None}
        steps.append(msgspec.structs.replace(batch, **lists, **plain))
    return steps


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params = with_supported_head_size(case.params)
    shape, steps, arena = Shape.of(params), [], None
    batches_of_steps = steps_of(batch_of(case), params)
    for number, batch in enumerate(batches_of_steps):
        attention = AttentionInputs(batch, shape, "computed" if not number else "nothing")
        pieces = attention.pieces(pattern)
        metadata, own = lay_out(batch, pattern, device, more=pieces)
        arena = arena or own
        tensors = {n: attention.tensor(own.tensors[n]) for n in (QUERY, KEY, VALUE, OUT)}
        tensors["rest"] = own.tensors[OUT][batch.num_tokens :]
        tensors["rest_before"] = tensors["rest"].clone()
        steps.append(SimpleNamespace(attention=attention, metadata=metadata, **tensors))
    assert arena is not None
    first = steps[0].attention
    asked = (num_blocks(first.batch), first.batch.block_size, shape.num_kv_heads, shape.head_size)
    return Call(
        {
            "asked": {"shape": list(asked), "head_size": shape.head_size},
            "constants": impl_arguments(shape, params),
            "layer": make_layer(shape, device),
            "kv_cache": first.cache_tensor(arena.tensors[CACHE]),
            "outs": [step.out for step in steps],
        },
        arena=arena,
        written=frozenset({CACHE, OUT}),
        facts=_BackendFacts(
            steps=steps,
            params=params,
            pattern=pattern,
            device=torch.device(device),
            before=arena.tensors[CACHE].clone(),
        ),
    )


def _run(offered: Any, call: Call) -> Outputs:
    """Get the backend's classes and run the engine steps with them."""
    asked, layer, cache, outs = call["asked"], call["layer"], call["kv_cache"], call["outs"]
    offered.validate_head_size(asked["head_size"])
    outputs = _constants(offered)
    outputs["kv_cache_shape"] = offered.get_kv_cache_shape(*asked["shape"])
    spec = SimpleNamespace(block_size=cache.shape[2])
    config = SimpleNamespace(speculative_config=None)
    builder = offered.get_builder_cls()(spec, ["layer.0"], config, call.facts.device)
    impl = offered.get_impl_cls()(**call["constants"])
    for number, (step, out) in enumerate(zip(call.facts.steps, outs, strict=True), 1):
        metadata = builder.build(0, step.metadata)
        outputs[Place("metadata", child=number)] = type(metadata) is offered.get_metadata_cls()
        impl.forward(layer, step.query, step.key, step.value, cache, metadata, out)
    return outputs


def _constants(offered: Any) -> Outputs:
    outputs: Outputs = {
        "name": offered.get_name(),
        "accept_output_buffer": offered.accept_output_buffer,
        "supported_dtypes": sorted(map(str, offered.get_supported_dtypes())),
        "supported_head_sizes": list(offered.get_supported_head_sizes()),
        "use_cascade_attention": offered.use_cascade_attention(0, [1], 8, 8, False, False, 1),
    }
    for method, name in _CLASSES.items():
        outputs[method] = getattr(offered, method)().__name__ == name
    for name in ("swap_blocks", "copy_blocks"):
        outputs[name] = callable(getattr(offered, name, MISSING))
    return outputs


def _for_reference(call: Call) -> None:
    call.replace("outs", [torch.zeros_like(out, dtype=torch.float64) for out in call["outs"]])


def _outputs(call: Call, result: Outputs) -> Outputs:
    steps, outs = call.facts.steps, call["outs"]
    words = steps[0].attention.cache_words(call.arena.tensors[CACHE])
    for number, (step, out) in enumerate(zip(steps, outs, strict=True), 1):
        kept = torch.equal(step.rest, step.rest_before)
        result[Place(_OUTPUT, child=number)] = out[: step.attention.batch.num_tokens]
        result[Place(_REST, child=number)] = kept
    return result | {"kv_cache": words}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    expected = {
        "name": "XFORMERS_VLLM_V1",
        "accept_output_buffer": True,
        "supported_dtypes": ["torch.bfloat16", "torch.float16"],
        "supported_head_sizes": list(range(32, 257, 8)),
        "use_cascade_attention": False,
        "kv_cache_shape": (2, *call["asked"]["shape"]),
    }
    for name, value in expected.items():
        if outputs[name] != value:
            yield Violation(name, f"is {outputs[name]!r}, not {value!r}")
    for name in (*_CLASSES, "swap_blocks", "copy_blocks"):
        if outputs[name] is not True:
            yield Violation(name, "is not the one that section 8 names")
    steps = [step.attention for step in call.facts.steps]
    before = steps[0].cache_words(call.facts.before)
    yield from written_violations(steps, outputs["kv_cache"], before, call.facts.pattern)
    window = call.facts.params["window"]
    for number, attention in enumerate(steps, 1):
        output = Place(_OUTPUT, child=number)
        if outputs[Place(_REST, child=number)] is not True:
            yield Violation(output, "is written where no row has a token")
        yield from in_child(range_violations(attention, outputs[output], window), number)


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check attention of each engine step, and read its new keys back from the final cache."""
    params, constants = call.facts.params, call["constants"]
    for number, step in enumerate(call.facts.steps, 1):
        violations = attention_violations(
            step.attention,
            step.query,
            outputs[Place(_OUTPUT, child=number)],
            _OUTPUT,
            scale=constants["scale"],
            window=params["window"],
            soft_cap=params["soft_cap"],
        )
        yield from in_child(violations, number)
        yield from new_key_violations(step.attention, outputs["kv_cache"], "kv_cache")


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    if place.field == _REST:
        return "output of tokens written that no row has"
    if place.field != _OUTPUT or not isinstance(got, torch.Tensor):
        return "wrong keys or values in the cache" if place.field == "kv_cache" else ""
    if got.shape == expected.shape and not got.isfinite().all():
        return "a slot read that no token was written to"
    return f"wrong attention in step {place.child}"


def _asked(field: str, changes: dict[str, Any], error: type[Exception] = MetadataError) -> Fault:
    return Fault("asked", lambda asked: asked | changes, field, error)


xformers_attention_backend = Operation(
    name=NAME,
    section="8",
    summary="the backend's constants and classes, used for some engine steps",
    inputs=Inputs(
        params=_Params,
        whole_contexts=True,
        problem=_problem,
        cases=_cases,
        boundaries=_boundaries,
        large=_large,
        from_batch=_steps,
        faults={
            "block size that is no multiple of 16": _asked("block_size", {"shape": [8, 24, 1, 32]}),
            "block size of 0": _asked("block_size", {"shape": [8, 0, 1, 32]}),
            "block size of another type": _asked(
                "block_size", {"shape": [8, "16", 1, 32]}, TypeError
            ),
            "no key heads": _asked("num_kv_heads", {"shape": [8, 16, 0, 32]}),
            "head size that is no multiple of 8": _asked("head_size", {"head_size": 33}),
            "head size above 256": _asked("head_size", {"head_size": 264}),
            "head size of another type": _asked("head_size", {"head_size": "64"}, TypeError),
        },
    ),
    call=ClassCall(
        prepare=_prepare, outputs=_outputs, use=_run, methods=("get_builder_cls", "get_impl_cls")
    ),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        tolerant=frozenset({"[].output"}),
        for_reference=_for_reference,
        diagnose=_diagnose,
        may_alias=frozenset({"[].output", "kv_cache"}),
    ),
    bench=Bench(never="its builder and its implementation are timed by themselves"),
    built_in=BuiltIn(kernels=True, package=PACKAGE, load=import_xformers),
)

OPERATIONS = (xformers_attention_backend,)
