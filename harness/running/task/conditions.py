"""Conditions of known deviations: expressions, their names, their value on a case.

simpleeval evaluates an expression, without Python's `eval`: it reads the numbers of the case,
and cannot import, write or call anything but the functions below.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

from attnproof.harness.model.case import Batch, Case

_LONGEST = 1_000_000
"""Maximum number of values that an expression visits."""


def _range(*bounds: int) -> range:
    """Return the range; ValueError if it is too long for an expression."""
    made = range(*bounds)
    if len(made) > _LONGEST:
        raise ValueError(f"a range of {len(made)} values, more than {_LONGEST}")
    return made


def _accumulate(values: Iterable[Any]) -> list[Any]:
    """Return the running sums; ValueError for values that are not numbers.

    Running sums of lists would take memory that grows with the square of their number.
    """
    numbers = list(values)
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError("accumulate of values that are not numbers")
    return list(accumulate(numbers))


def _multiplied(one: Any, other: Any) -> Any:
    """Return the product of numbers, or a list repeated; ValueError if it is too long.

    A repeated list of lists may have more values than the evaluator can visit.
    """
    for repeated, times in ((one, other), (other, one)):
        if isinstance(repeated, list | tuple | str):
            flat = all(isinstance(value, int | float | str) for value in repeated)
            if not flat or len(repeated) * times > _LONGEST:
                raise ValueError("a repetition of lists, or of too many values")
    return one * other


_FUNCTIONS = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "dict", "enumerate", "int", "len", "list"),
        *("max", "min", "reversed", "set", "sorted", "str", "sum", "tuple", "zip"),
    )
} | {"accumulate": _accumulate, "pairwise": pairwise, "range": _range}
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
    operators = simpleeval.DEFAULT_OPERATORS | {ast.Mult: _multiplied}
    return simpleeval.EvalWithCompoundTypes(operators, _FUNCTIONS, allowed_attrs=_ATTRIBUTES)


def holds(when: str, case: Case) -> bool:
    """True if the expression is true of the case; raises what the expression raises."""
    evaluator, tree = _evaluator(), compiled(when)
    evaluator.names = _values(case)
    return bool(evaluator.eval(when, previously_parsed=tree))


@lru_cache(maxsize=1000)
def compiled(when: str) -> ast.AST:
    """Return the parsed expression (SyntaxError; NameError for an unknown name)."""
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
