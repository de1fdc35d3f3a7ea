"""Conditions of known deviations: expressions, their names, their value on a case.

simpleeval evaluates an expression, without Python's `eval`: it reads the numbers of the case,
and cannot import, write or call anything but the functions below.
"""

from __future__ import annotations

import ast
import builtins
import os
import pickle
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.running.task.limited import CPU_S, MEMORY_BYTES, LimitedProcess

_LONGEST = 1_000_000
"""Maximum number of values that comprehensions visit."""
_MOST_CHARACTERS = 10_000
"""Maximum length of an expression: the parser's memory is many times that of its text."""
_MOST_SAID = 200
"""Maximum length of an error's text."""


class ConditionError(Exception):
    """An expression has no value on a case; the text says what it does instead."""


_FUNCTIONS = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "dict", "enumerate", "int", "len", "list"),
        *("max", "min", "reversed", "set", "sorted", "str", "sum", "tuple", "zip"),
    )
} | {"accumulate": accumulate, "pairwise": pairwise, "range": range}
_ATTRIBUTES: dict[type | None, set[str]] = {
    Batch: set(Batch.__struct_fields__),
    dict: {"get", "items", "keys", "values"},
    list: {"count", "index"},
    tuple: {"count", "index"},
    str: {"endswith", "startswith"},
}
"""Attributes that an expression may read, by type."""


@lru_cache(maxsize=1)
def _evaluator() -> Any:
    """Return the evaluator of expressions; its names are those of the case at hand."""
    import simpleeval  # a GPU machine without a package index may lack it

    simpleeval.MAX_COMPREHENSION_LENGTH = _LONGEST
    return simpleeval.EvalWithCompoundTypes(None, _FUNCTIONS, allowed_attrs=_ATTRIBUTES)


def holds(when: str, case: Case) -> bool:
    """True if the expression is true of the case (ConditionError).

    It is evaluated in a process with limits of time and memory.
    """
    process = _process(os.getpid())
    if not process.is_usable():
        _process.cache_clear()
        process = _process(os.getpid())
    reply = process.call(pickle.dumps((when, case)))
    if reply is None:
        raise ConditionError(f"takes more than {CPU_S:g} s or {MEMORY_BYTES >> 20} MiB")
    if reply not in (_TRUE, _FALSE):
        raise ConditionError(reply.decode(errors="backslashreplace"))
    return reply == _TRUE


_TRUE, _FALSE = b"1", b"0"


@lru_cache(maxsize=1)
def _process(_pid: int) -> LimitedProcess:
    """Return the process that evaluates for this one."""
    return LimitedProcess(_evaluate)


def _evaluate(request: bytes) -> bytes:
    """Return the truth of a pickled expression on a case, or the text of its error."""
    when, case = pickle.loads(request)
    evaluator = _evaluator()
    try:
        evaluator.names = _values(case)
        return _TRUE if evaluator.eval(when, previously_parsed=compiled(when)) else _FALSE
    except Exception as error:
        return f"raises {type(error).__name__} ({str(error)[:_MOST_SAID]})".encode(errors="replace")


@lru_cache(maxsize=1000)
def compiled(when: str) -> ast.AST:
    """Return the parsed expression (SyntaxError; NameError for an unknown name)."""
    if len(when) > _MOST_CHARACTERS:
        raise SyntaxError(f"it has {len(when)} characters, more than {_MOST_CHARACTERS}")
    if "\0" in when:
        raise SyntaxError("it has a null character")
    tree = ast.parse(when.strip(), mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and type(node) not in _evaluator().nodes:
            raise SyntaxError(f"{type(node).__name__} is not supported")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    for node in names:
        if node.id not in bound and node.id not in NAMES and node.id not in _FUNCTIONS:
            raise NameError(node.id, name=node.id)
    return tree


def _values(case: Case) -> dict[str, Any]:
    """Return the values of the names; without a batch, lists are empty and numbers 0."""
    batch = case.batch
    padding = [0] * (batch.padded_requests if batch else 0)
    q = [*(batch.query_lens if batch else ()), *padding]
    c = [*(batch.computed_lens if batch else ()), *padding]
    blocks = [list(row) for row in batch.blocks] if batch else []
    width = max(map(len, blocks), default=0) + (batch.spare_columns if batch else 0)
    return {
        "q": q,
        "c": c,
        "s": [computed + query for computed, query in zip(c, q, strict=True)],
        "R": len(q),
        "T": sum(q) + (batch.padded_tokens if batch else 0),
        "B": batch.block_size if batch else 0,
        "W": max(width, int(bool(q))),
        "blocks": blocks,
        "padded_requests": len(padding),
        "padded_tokens": batch.padded_tokens if batch else 0,
        "params": case.params,
        "steps": case.params.get("steps", []),
        "fault": case.fault,
        "batch": batch,
        "operation": case.operation,
    }


NAMES = list(_values(Case("")))
"""Names of a case that an expression may use."""
