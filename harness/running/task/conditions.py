"""Conditions of known deviations: Python expressions, their names, their value on a case.

An expression is evaluated without a sandbox: its author is trusted like the candidate's.
"""

from __future__ import annotations

import ast
import builtins
from functools import lru_cache
from itertools import accumulate, pairwise
from types import CodeType
from typing import Any

from attnproof.harness.model.case import Case

_FUNCTIONS = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "dict", "enumerate", "int", "isinstance", "len", "list"),
        *("max", "min", "range", "reversed", "set", "sorted", "str", "sum", "tuple", "zip"),
    )
} | {"accumulate": accumulate, "pairwise": pairwise}


def holds(when: str, case: Case) -> bool:
    """True if the expression is true of the case; raises what the expression raises."""
    return bool(eval(compiled(when), _values(case)))


@lru_cache(maxsize=1000)
def compiled(when: str) -> CodeType:
    """Return the compiled expression (SyntaxError; NameError for an unknown name)."""
    tree = ast.parse(when.strip(), mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    arguments = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(arguments)
    for node in names:
        if node.id not in bound and node.id not in NAMES and node.id not in _FUNCTIONS:
            raise NameError(node.id, name=node.id)
    return compile(tree, "when", "eval")


def _values(case: Case) -> dict[str, Any]:
    """Return the values of the names; without a batch, lists are empty and numbers 0."""
    batch = case.batch
    padding = [0] * (batch.padded_requests if batch else 0)
    q = [*(batch.query_lens if batch else ()), *padding]
    c = [*(batch.computed_lens if batch else ()), *padding]
    blocks = [list(row) for row in batch.blocks] if batch else []
    width = max(map(len, blocks), default=0) + (batch.spare_columns if batch else 0)
    values = {
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
    return values | _FUNCTIONS | {"__builtins__": {}}


NAMES = [name for name in _values(Case("")) if name not in (*_FUNCTIONS, "__builtins__")]
"""Names of a case that an expression may use."""
