"""Operations of SPEC.md section 6 that reshape queries and outputs for speculative decoding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.memory.arena import Arena, Piece
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import (
    Few,
    Layout,
    Params,
    Tokens,
    size_problem,
)

QUERY, OUTPUT = "reshape_query_for_spec_decode", "reshape_attn_output_for_spec_decode"
_DTYPES = (
    *(torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
)
_WORDS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""Integers of the size of a float, by its bytes."""
_STALE = {torch.int32: (0x5A5A5A5B, 0), torch.int16: (0x5A5B, 0), torch.uint8: (0x5B, 0)}
_CONTIGUOUS, _SPACED, _TRANSPOSED, _STRIDED = range(4)
"""Layouts: dense; gaps between tokens; heads outermost in memory; every second element."""
_ARGS = ("batch", "tokens", "heads", "size", "layout", "dtype")


class _QueryParams(Params):
    batch: Tokens
    """Requests."""
    tokens: Tokens
    """Query tokens of each request."""
    heads: Few
    """Query heads."""
    size: Annotated[int, Meta(ge=0, le=2**16)]
    """Elements of a head."""
    layout: Layout
    """Index of the memory layout."""
    dtype: Annotated[int, Meta(ge=0, le=len(_DTYPES) - 1)]
    """Index of the dtype."""


class _OutputParams(_QueryParams):
    flat: Annotated[int, Meta(ge=0, le=1)]
    """1 for an output of three dimensions, 0 for one of four."""


def _problem(case: Case) -> str:
    sizes = (max(1, case.params[name]) for name in _ARGS[:4])
    return size_problem("batch * tokens * heads * size", prod(sizes))


def _case(operation: str, values: tuple[int, ...], **params: int) -> Case:
    """Return a case; `tokens` is the number per request, layout and dtype are indices."""
    # Indices shrink towards the simplest layout and dtype.
    return Case(operation, None, dict(zip(_ARGS, values, strict=True)) | params)


_VALUES = st.tuples(
    st.integers(1, 5),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(0, len(_DTYPES) - 1),
)


def _named() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "three requests of two tokens", (3, 2, 2, 4, 0, 0)
    yield "one request", (1, 5, 2, 4, 0, 0)
    yield "one token each", (5, 1, 2, 4, 0, 0)
    yield "no tokens", (3, 0, 2, 4, 0, 0)
    for number, dtype in enumerate(_DTYPES):
        yield str(dtype).removeprefix("torch."), (2, 3, 2, 4, 0, number)
    yield "tokens apart", (2, 3, 2, 4, _SPACED, 1)
    yield "heads outermost in memory", (2, 3, 2, 4, _TRANSPOSED, 0)
    yield "every second element", (2, 3, 2, 4, _STRIDED, 2)
    yield "many tokens", (256, 4, 2, 8, 0, 1)


def _strides(layout: int, tokens: int, heads: int, size: int) -> tuple[int, int, int]:
    """Return the strides of a (tokens, heads, size) tensor, in elements."""
    if layout == _TRANSPOSED:
        return (size, max(1, tokens) * size, 1)
    step = 2 if layout == _STRIDED else 1
    token = heads * size * step + (3 if layout == _SPACED else 0)
    return (token, size * step, step)


def _tensor(case: Case, ndim: int, pattern: int, device: str) -> tuple[torch.Tensor, Arena]:
    """Return the case's tensor and its arena, which holds the floats as integers of their size."""
    batch, tokens, heads, size, layout, number = (case.params[name] for name in _ARGS)
    batch, heads, size = max(1, batch), max(1, heads), max(1, size)
    dtype = _DTYPES[number % len(_DTYPES)]
    rows = batch * tokens
    # Whole numbers up to 96 are exact in each dtype.
    values = torch.arange(rows * heads * size).remainder(97).to(dtype).view(_WORDS[dtype.itemsize])
    strides: tuple[int, ...] = _strides(layout, rows, heads, size)
    shape: tuple[int, ...] = (rows, heads, size)
    if ndim == 4:
        shape, strides = (batch, tokens, heads, size), (strides[0] * tokens, *strides)
    piece = Piece("tensor", values.reshape(shape).numpy(), False, strides)
    arena = Arena([piece], _STALE[_WORDS[dtype.itemsize]][pattern], device)
    return arena.tensors["tensor"].view(dtype), arena


def _prepare(case: Case, pattern: int, device: str) -> Call:
    if case.operation == QUERY:
        query, arena = _tensor(case, 3, pattern, device)
        return Call({"query": query, "batch_size": max(1, case.params["batch"])}, arena=arena)
    output, arena = _tensor(case, 3 if case.params["flat"] else 4, pattern, device)
    return Call({"attn_output": output}, arena=arena)


def _outputs(call: Call, result: Any) -> Outputs:
    argument = next(iter(call.args.values()))
    storage = result.untyped_storage().data_ptr()
    return {
        "result": result,
        "is a view": storage == argument.untyped_storage().data_ptr(),
        "is the argument": result is argument,
        "strides": list(result.stride()) if result.numel() else [],
    }


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    """True if the elements are equal; torch compares no floats of 8 bits."""
    kind = _WORDS[first.dtype.itemsize]
    return torch.equal(first.view(kind), second.view(kind))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    argument, result = next(iter(call.args.values())), outputs["result"]
    is_query = "batch_size" in call.args
    if is_query:
        batch, (tokens, *rest) = call["batch_size"], argument.shape
        shape, words = (batch, tokens // batch, *rest), "(batch, tokens of each, heads, size)"
    elif argument.ndim == 3:
        if not outputs["is the argument"]:
            yield Violation("is the argument", "is not the 3-D output as it was given")
        return
    else:
        shape = (argument.shape[0] * argument.shape[1], *argument.shape[2:])
        words = "(all tokens, heads, size)"
    if tuple(result.shape) != shape or result.dtype != argument.dtype:
        yield Violation("result", f"is not {words}")
        return
    whole, parts = (argument, result) if is_query else (result, argument)
    tokens = parts.shape[1]
    for row in range(min(len(parts), 3)):
        if not _equal(parts[row], whole[row * tokens : (row + 1) * tokens]):
            yield Violation("result", "gives a request another's tokens")
    if not outputs["is a view"]:
        yield Violation("is a view", "is a copy")


def _diagnose(_call: Call, place: Place, expected: Any, _got: Any) -> str:
    name = place.field
    if name == "is a view" and expected:
        return "a copy where a view was expected"
    if name == "is the argument" and expected:
        return "a new tensor where the argument was expected"
    return ""


def _several(case: Case) -> bool:
    """True if at least two requests keep at least two tokens when each loses one."""
    params = case.params
    return bool(params["batch"] > 1 and params["tokens"] > 2 and not params["flat"])


def _indivisible(case: Case) -> bool:
    return bool(case.params["batch"] > 1 and case.params["tokens"] > 0)


def _boundaries(operation: str) -> Iterator[tuple[str, Case]]:
    for name, values in _named():
        yield name, _case(operation, values, **({} if operation == QUERY else {"flat": 0}))
    if operation == OUTPUT:
        yield "3-D already", _case(OUTPUT, (2, 3, 2, 4, 0, 0), flat=1)
        yield "3-D already, heads outermost in memory", _case(OUTPUT, (2, 3, 2, 4, 2, 0), flat=1)


def _steps(operation: str, batch: Batch) -> Iterator[Case]:
    values = (1 + batch.num_requests % 9, 1 + batch.num_tokens % 5, 2, 4, 0, 1)
    yield _case(operation, values, **({} if operation == QUERY else {"flat": batch.num_tokens % 2}))


def _operation(name: str, summary: str, **inputs: Any) -> Operation:
    steps = partial(_steps, name)
    return Operation(
        name=name,
        section="6",
        summary=summary,
        inputs=Inputs(
            problem=_problem,
            has_batch=False,
            boundaries=partial(_boundaries, name),
            from_batch=steps,
            **inputs,
        ),
        call=FunctionCall(prepare=_prepare, outputs=_outputs),
        contract=Contract(
            invariants=_invariants, may_alias=frozenset({"result"}), diagnose=_diagnose
        ),
        bench=Bench(cases=lambda batch: steps(batch) if batch.num_requests == 64 else ()),
    )


reshape_query_for_spec_decode = _operation(
    QUERY,
    "a query reshaped to (requests, tokens of each, heads, size)",
    params=_QueryParams,
    cases=lambda: st.builds(lambda values: _case(QUERY, values), _VALUES),
    faults={
        "query of another type": wrong_type("query"),
        "2-D query": Fault("query", lambda query: query[:, 0]),
        "4-D query": Fault("query", lambda query: query[None]),
        "batch size of another type": wrong_type("batch_size"),
        "batch size of 0": wrong_value("batch_size", 0),
        "negative batch size": wrong_value("batch_size", -1),
        "tokens that requests do not share evenly": Fault(
            "query", lambda query: query[1:], "batch_size", applies=_indivisible
        ),
    },
)

reshape_attn_output_for_spec_decode = _operation(
    OUTPUT,
    "an output reshaped to (tokens of all requests, heads, size)",
    params=_OutputParams,
    cases=lambda: st.builds(
        lambda values, flat: _case(OUTPUT, values, flat=flat), _VALUES, st.integers(0, 1)
    ),
    faults={
        "output of another type": wrong_type("attn_output"),
        "2-D output": Fault(
            "attn_output",
            lambda output: output.flatten(0, 1)[:, 0] if output.ndim == 4 else output[:, 0],
        ),
        "5-D output": Fault("attn_output", lambda output: output[(None,) * (5 - output.ndim)]),
        "requests that lie apart": Fault(
            "attn_output", lambda output: output[:, :-1], applies=_several
        ),
    },
)

OPERATIONS = (reshape_query_for_spec_decode, reshape_attn_output_for_spec_decode)
