"""Make mutants of a function from its syntax tree.

mutmut and cosmic-ray rewrite the files of a project and run its tests once a mutant. Here a
mutant is planted in a process that has everything imported, and is judged by cases until the
first failure, so only the changes themselves are needed; these are the usual ones, and those of
tensor code: another axis, another dtype, a mask left out.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Container, Iterator
from typing import TypeGuard

from attnproof.harness.strength.mutants.mutant import Mutant

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),  # codespell:ignore notin
    ast.NotIn: (ast.In,),  # codespell:ignore notin
}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mult,),
    ast.Div: (ast.Mult,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
_NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "any": "all",
    "all": "any",
    "amax": "amin",
    "amin": "amax",
    "argmax": "argmin",
    "int64": "int32",
    "float64": "float32",
    "float32": "float16",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "logical_and": "logical_or",
    "logical_or": "logical_and",
}
_AXES = ("dim", "axis")
_MASKS = ("mask", "where")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.Module) -> dict[str, Function]:
    """Return functions and methods of a module by name; inner ones belong to the outermost."""
    by_name: dict[str, Function] = {}
    waiting: list[tuple[str, ast.AST]] = [("", child) for child in tree.body]
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, Function):
            by_name[prefix + node.name] = node
        elif isinstance(node, ast.ClassDef):
            waiting += [(f"{prefix}{node.name}.", child) for child in node.body]
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting += [(prefix, child) for child in ast.iter_child_nodes(node)]
    return by_name


def has_run(function: Function, ran: Container[int]) -> bool:
    """True if lines of the function's body, or of functions inside, are among those that ran."""
    last = function.end_lineno or function.lineno
    return any(line in ran for line in range(function.body[0].lineno, last + 1))


def mutants(
    file: str, name: str, function: Function, ran: Container[int] | None = None
) -> list[Mutant]:
    """Return the mutants of a function.

    With `ran`, the lines that ran, an inner function that did not run has none: no case can see
    a change there.
    """
    return [
        Mutant(
            file=file,
            function=name,
            line=getattr(node, "lineno", function.lineno),
            operator=operator,
            index=index,
            before=ast.unparse(node),
            after="" if new is None else ast.unparse(new),
            lines=lines,
        )
        for index, (operator, node, new, owner, lines) in enumerate(_changes(function))
        if ran is None or has_run(owner, ran)
    ]


def mutated(tree: ast.Module, name: str, index: int) -> ast.Module:
    """Return a copy of the module in which change `index` of a function is made."""
    tree = copy.deepcopy(tree)
    function = functions(tree)[name]
    for number, (_, node, new, _, _) in enumerate(_changes(function)):
        if number == index:
            _Replacer(node, new).visit(function)
            return ast.fix_missing_locations(tree)
    raise IndexError(index)


class _Replacer(ast.NodeTransformer):
    """Replace one node; a statement without a replacement becomes `pass`."""

    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self._old = old
        self._new = new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self._old:
            return ast.copy_location(self._new or ast.Pass(), node)
        return self.generic_visit(node)


_Lines = tuple[int, int]
"""First and last line of a statement, without those of statements inside it."""


def _changes(
    function: Function,
) -> Iterator[tuple[str, ast.AST, ast.AST | None, Function, _Lines]]:
    """Yield operator, node, replacement, innermost function and lines of each change, in order.

    Annotations and docstrings have none, and neither has the text of an error.
    """
    for node, owner, lines in _code_nodes(function):
        for operator, new in _of_node(node):
            yield operator, node, new, owner, lines
    arguments = function.args
    whole = function.body[0].lineno, function.end_lineno or function.lineno
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        for new in _other_default(default):
            assert default is not None
            yield "default", default, new, function, whole


def _code_nodes(function: Function) -> Iterator[tuple[ast.AST, Function, _Lines]]:
    waiting: list[tuple[ast.AST, Function, _Lines]] = []
    waiting += [(statement, function, (0, 0)) for statement in reversed(function.body)]
    while waiting:
        node, owner, lines = waiting.pop()
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.stmt):
            lines = _lines(node)
        yield node, owner, lines
        inside: list[ast.AST] = []
        if isinstance(node, Function):
            owner, inside = node, list(node.body)
        elif isinstance(node, ast.AnnAssign):
            inside = [node.value] if node.value else []
        elif _is_first_of_shape(node):
            inside = [node.value]  # most tensors have one dimension: the last is the first
        elif _is_first_stride(node):
            inside = [node.func]
        elif not isinstance(node, ast.JoinedStr):
            inside = list(ast.iter_child_nodes(node))
        waiting += [(child, owner, lines) for child in reversed(inside)]


def _lines(statement: ast.stmt) -> _Lines:
    """Return the lines of a statement, of a compound one those of its head."""
    body = getattr(statement, "body", None)
    last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
    return statement.lineno, max(statement.lineno, last)


def _of_node(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for comparison in _COMPARISONS.get(type(node.ops[0]), ()):
            yield "comparison", ast.Compare(node.left, [comparison()], node.comparators)
    elif isinstance(node, ast.BinOp):
        for arithmetic in _ARITHMETIC.get(type(node.op), ()):
            yield "arithmetic", ast.BinOp(node.left, arithmetic(), node.right)
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield "sign or negation", node.operand
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "condition", ast.BoolOp(other, node.values)
    elif isinstance(node, ast.Constant):
        yield from _other_constant(node)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from _other_name(node)
    elif isinstance(node, ast.Call):
        yield from _other_call(node)
    elif isinstance(node, ast.Slice):
        yield from _other_slice(node)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _other_test(node)
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.Break | ast.Continue):
        yield from _other_statement(node)


def _is_first_of_shape(node: ast.AST) -> TypeGuard[ast.Subscript]:
    """True for `x.shape[0]`."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Attribute):
        return False
    index = node.slice
    return node.value.attr == "shape" and isinstance(index, ast.Constant) and index.value == 0


def _is_first_stride(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for `x.stride(0)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    arguments = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return node.func.attr == "stride" and arguments == [0]


def _other_constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
        yield "constant", ast.Constant(node.value - 1)


def _other_name(node: ast.Name | ast.Attribute) -> Iterator[tuple[str, ast.AST]]:
    name = node.id if isinstance(node, ast.Name) else node.attr
    if name in _NAMES and isinstance(node.ctx, ast.Load):
        other = copy.copy(node)
        setattr(other, "id" if isinstance(node, ast.Name) else "attr", _NAMES[name])
        yield "name", other


def _other_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    for number, keyword in enumerate(node.keywords):
        value = keyword.value
        others = [k for n, k in enumerate(node.keywords) if n != number]
        if keyword.arg in _MASKS:
            yield "mask", ast.Call(node.func, node.args, others)
        if keyword.arg in _AXES and isinstance(value, ast.Constant) and value.value in (0, 1):
            changed = ast.keyword(keyword.arg, ast.Constant(1 - value.value))
            yield "axis", ast.Call(node.func, node.args, [*others, changed])
    if _is_first_stride(node):
        yield "axis", ast.Call(node.func, [ast.Constant(1)], [])
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("clamp", "masked_fill", "clone"):
        yield "call left out", node.func.value


def _other_slice(node: ast.Slice) -> Iterator[tuple[str, ast.AST]]:
    unit = ast.Constant(1)
    if node.lower is not None:
        yield "slice", ast.Slice(ast.BinOp(node.lower, ast.Add(), unit), node.upper, node.step)
    if node.upper is not None:
        yield "slice", ast.Slice(node.lower, ast.BinOp(node.upper, ast.Sub(), unit), node.step)


def _other_test(node: ast.If | ast.While | ast.IfExp) -> Iterator[tuple[str, ast.AST]]:
    other = copy.copy(node)
    other.test = ast.UnaryOp(ast.Not(), node.test)
    if not isinstance(node, ast.While):  # a negated loop is the same as a dropped one, or hangs
        yield "condition", other


def _other_statement(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(node, ast.AugAssign):
        plain = copy.copy(node)
        for arithmetic in _ARITHMETIC.get(type(node.op), ()):
            plain = copy.copy(node)
            plain.op = arithmetic()
            yield "arithmetic", plain
    writes = isinstance(node, ast.Assign) and isinstance(
        node.targets[0], ast.Subscript | ast.Attribute
    )
    if writes or isinstance(node, ast.AugAssign | ast.Expr | ast.Break | ast.Continue):
        yield "statement dropped", None


def _other_default(default: ast.expr | None) -> Iterator[ast.AST]:
    if isinstance(default, ast.Constant):
        for _, other in _other_constant(default):
            yield other
