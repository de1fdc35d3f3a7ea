"""Definitions of flashinfer-bench: a JSON file of axes, inputs, outputs and a reference.

What the format does not say follows from names: `*_indptr` are offsets, `*_indices` ids below
`num_pages`, `*_last_page_len` lengths of last pages. Constraints hold in each case.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from attnproof import reference
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.case import Case
from attnproof.harness.model.files import read_regular
from attnproof.harness.operations import ALL
from attnproof.harness.operations.derived.params import Parameter
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.json_values import (
    GLOBALS,
    SCALAR,
    SCALE,
    SEED,
    Formula,
    InputValues,
    of_step,
)
from attnproof.reference.definition.definition import (
    Argument,
    Definition,
    DefinitionError,
    Result,
    checking,
)
from attnproof.reference.definition.roles import Array, Bound, Declaration, Flag, Int, Object, Role
from attnproof.reference.interface import MetadataError

_TOLERANCES = {
    # A kernel rounds intermediates, such as the weights of attention, and the result.
    torch.bfloat16: 1.6e-2,
    torch.float16: 2e-3,
    torch.float32: 1e-3,  # twice the rounding of TF32, in which a kernel may multiply
    torch.float64: 1e-6,
}
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_DTYPES = {str(dtype)[len("torch.") :]: dtype for dtype in (*_TOLERANCES, *_INTEGERS, torch.bool)}
_BELOW = 64
"""Limit of integers that nothing is known of."""


class _Const(msgspec.Struct, tag_field="type", tag="const"):
    value: Annotated[int, Meta(ge=1)]


class _Var(msgspec.Struct, tag_field="type", tag="var"):
    pass


class _Spec(msgspec.Struct):
    shape: list[str] | None
    dtype: str


class _File(msgspec.Struct):
    name: str
    axes: dict[str, Any]
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    reference: str
    constraints: list[str] | None = None
    description: str | None = None


def read_definition(source: str, shown: str) -> tuple[Definition, dict[str, Any]]:
    """Return the definition in a file, and further arguments of `derive` (UsageError).

    The text of its reference is executed.
    """
    try:
        text = read_regular(Path(source))
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from None
    file = _converted(shown, text, _File, msgspec.json.decode)
    return _Reader(file, source, shown).result()


def _converted(place: str, value: Any, kind: Any, convert: Any = msgspec.convert) -> Any:
    try:
        return convert(value, type=kind)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, another type
        raise UsageError(f"{place}: {escape_line(str(error))}") from None


class _Reader:
    """The axes, inputs, outputs and constraints of a file."""

    def __init__(self, file: _File, source: str, shown: str) -> None:
        self._file, self._source, self._shown = file, source, shown
        axes = self._entries("axes", file.axes, _Const | _Var)
        self._consts = {name: axis.value for name, axis in axes.items() if isinstance(axis, _Const)}
        self._inputs: dict[str, _Spec] = self._entries("inputs", file.inputs, _Spec)
        self._outputs: dict[str, _Spec] = self._entries("outputs", file.outputs, _Spec)
        self._shapes = {name: spec.shape or [] for name, spec in self._inputs.items()}
        self._formulas: dict[str, Formula] = {}
        self._built = InputValues(self._consts, self._shapes, self._formulas)
        self._values: dict[str, Callable[[Any], Any]] = {}
        self._parameters: dict[str, Parameter] = {}
        self._is_all_known = True

    def _refusal(self, key: str, text: str) -> UsageError:
        return UsageError(f"{self._shown}: {key}: {escape_line(text)}")

    def _entries(self, key: str, table: dict[str, Any], kind: Any) -> dict[str, Any]:
        """Return the converted entries of a table (UsageError)."""
        for name in table:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
                raise self._refusal(f"{key}.{name}", "is no name of a variable")
            if key == "inputs" and name in self._file.axes:
                raise self._refusal(f"{key}.{name}", "is the name of an axis too")
        if not table:
            raise self._refusal(key, "is empty")
        where = f"{self._shown}: {key}"
        return {name: _converted(f"{where}.{name}", entry, kind) for name, entry in table.items()}

    def result(self) -> tuple[Definition, dict[str, Any]]:
        """Return the definition and the arguments of `derive` (UsageError)."""
        arguments = tuple(Argument(n, self._argument(n, spec)) for n, spec in self._inputs.items())
        results = tuple(self._result(name, spec) for name, spec in self._outputs.items())
        conditions = [*self._conditions()]
        conditions += [_rises(name) for name in self._inputs if self._is_offsets(name)]
        specs = [*self._inputs.values(), *self._outputs.values()]
        shapes = [spec.shape or [] for spec in specs]
        for axis in self._file.axes.keys() - self._consts:
            self._values[axis] = partial(self._built.size, axis)
            if axis not in self._formulas:
                self._parameters[f"size_{axis}"] = self._built.size_parameter(axis, shapes)
        text = self._file.description or f"Compute {self._file.name}."
        summary = text.split(". ")[0].strip().rstrip(".")
        function = self._function(text)
        definition = Definition(
            self._file.name, summary, self._source, function, arguments, results, tuple(conditions)
        )
        more = {
            "values": self._values,
            "parameters": self._parameters,
            "steps": lambda batch: [(batch, of_step(batch, self._parameters))],
        }
        if not self._is_all_known:
            more["problem"] = _refused_by_reference
        return replace(definition, function=checking(function, definition)), more

    def _array(self, key: str, spec: _Spec) -> Array:
        """Return the declaration of an array (UsageError)."""
        if spec.dtype not in _DTYPES:
            raise self._refusal(f"{key}.dtype", f"{spec.dtype!r} is none of {', '.join(_DTYPES)}")
        for axis in spec.shape or ():
            if axis not in self._file.axes:
                known = ", ".join(self._file.axes)
                raise self._refusal(f"{key}.shape", f"{axis!r} is no axis: axes has {known}")
        dtype = _DTYPES[spec.dtype]
        role: Role = "data" if dtype in _TOLERANCES else "numbers"
        role = "flags" if dtype is torch.bool else role
        shape: tuple[Bound, ...] = tuple(self._consts.get(dim, dim) for dim in spec.shape or ())
        return Array(role, shape, dtype)

    def _result(self, name: str, spec: _Spec) -> Result:
        declared = self._array(f"outputs.{name}", spec)
        tolerance = _TOLERANCES.get(declared.dtypes[0], 0.0)
        if spec.shape is not None:
            return Result(name, replace(declared, tolerance=tolerance))
        if tolerance:
            raise self._refusal(f"outputs.{name}.shape", "a scalar of floats is not supported")
        return Result(name, Array(), bool if declared.role == "flags" else int)

    def _is_offsets(self, name: str) -> bool:
        spec = self._inputs[name]
        return name.endswith("_indptr") and "int" in spec.dtype and len(spec.shape or ()) == 1

    def _argument(self, name: str, spec: _Spec) -> Declaration:
        """Return the declaration of an input; add the function that constructs its values."""
        declared, is_scalar = self._array(f"inputs.{name}", spec), spec.shape is None
        if declared.role == "data" and is_scalar:
            self._parameters[f"value_{name}"] = SCALAR
            self._values[name] = lambda values: values.params[f"value_{name}"]
            return Object((float,))
        if declared.role == "data":
            self._parameters |= {"values_seed": SEED, "values_scale": SCALE}
            self._values[name] = partial(self._built.floats, name)
            return declared
        if declared.role == "flags":
            return Flag() if is_scalar else declared
        if self._is_offsets(name):
            self._parameters[f"lengths_{name}"] = self._built.length_parameter(name)
            self._values[name] = partial(self._built.offsets, name)
            return replace(declared, least=0)
        if name.endswith("_indices") and "num_pages" in self._file.axes and not is_scalar:
            self._parameters["values_seed"] = SEED
            self._values[name] = partial(self._built.page_ids, name)
            return replace(declared, least=0, below=self._consts.get("num_pages", "num_pages"))
        if name.endswith("_last_page_len") and "page_size" in self._consts and not is_scalar:
            return replace(declared, least=1, below=self._consts["page_size"] + 1)
        if declared.dtypes[0].itemsize == 1 and not is_scalar:
            return declared  # quantized numbers
        self._is_all_known = False
        return Int(below=_BELOW) if is_scalar else replace(declared, least=0, below=_BELOW)

    def _conditions(self) -> Iterator[Callable[..., Any]]:
        """Yield a condition for each constraint; keep what constraints say of axes (UsageError)."""
        places = {
            axis: (name, place)
            for name, shape in reversed(self._shapes.items())
            for place, axis in enumerate(shape)
        }
        global_names = {*dir(builtins), *GLOBALS} - self._file.axes.keys() - self._inputs.keys()
        for index, text in enumerate(self._file.constraints or ()):
            key = f"constraints[{index}]"
            try:
                tree = ast.parse(text.strip(), key, "eval")
            except (SyntaxError, ValueError) as error:
                raise self._refusal(key, f"{text!r} is no expression: {error.args[0]}") from None
            formula = _formula(tree.body, global_names)
            for name in sorted(formula.names - self._file.axes.keys() - self._inputs.keys()):
                raise self._refusal(key, f"{name} is no axis and no input")
            self._solve(tree.body, global_names)
            if formula.names <= {*places, *self._consts, *self._inputs}:
                yield _condition(f"{text.strip()} ({key})", formula, places, self._consts)

    def _solve(self, tree: ast.expr, global_names: set[str]) -> None:
        """Keep the expression that a constraint says an axis to be equal to."""
        if not isinstance(tree, ast.Compare) or [type(op) for op in tree.ops] != [ast.Eq]:
            return
        left, right = tree.left, tree.comparators[0]
        for side, other in ((left, right), (right, left)):
            if not isinstance(side, ast.Name) or side.id in {*self._formulas, *self._consts}:
                continue
            formula = _formula(other, global_names)
            if side.id in self._file.axes and side.id not in self._needed(formula.names):
                self._formulas[side.id] = formula
                return

    def _needed(self, names: frozenset[str]) -> set[str]:
        """Return the axes and inputs that a formula needs, through others too."""
        needed, left = set[str](), {*names}
        while left:
            name = left.pop()
            needed.add(name)
            further = set(self._shapes.get(name, ()))
            further |= self._formulas[name].names if name in self._formulas else set()
            left |= further - needed
        return needed

    def _function(self, text: str) -> Callable[..., Any]:
        """Return the reference with the inputs as its parameters (UsageError)."""
        module = ModuleType(f"definition_{self._file.name}", text)
        sys.modules[module.__name__] = module
        try:
            code = compile(self._file.reference, f"{self._source}: reference", "exec")
            exec(code, vars(module))
        except (Exception, SystemExit) as error:
            shown = f"cannot be executed: {type(error).__name__}: {error}"
            raise self._refusal("reference", shown) from None
        run = vars(module).get("run")
        if not callable(run):
            raise self._refusal("reference", "has no function run")

        def call(*args: Any, **kwargs: Any) -> Any:
            return run(*signature.bind(*args, **kwargs).args)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in self._inputs])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__name__, call.__doc__ = self._file.name, text
        return call


def _formula(tree: ast.expr, global_names: set[str]) -> Formula:
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    own = {node.id for node in names if isinstance(node.ctx, ast.Store)}  # of a comprehension
    code = compile(ast.Expression(tree), "constraint", "eval")
    return Formula(code, frozenset({node.id for node in names} - own - global_names))


def _rises(name: str) -> Callable[..., Any]:
    def condition(**arguments: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, str]]:
        offsets = arguments[name]
        wrong = torch.cat([offsets[:1] != 0, offsets.diff() < 0])
        yield name, wrong, "offsets that rise from 0"

    return _reading(condition, [name])


def _condition(
    text: str, formula: Formula, places: dict[str, tuple[str, int]], consts: dict[str, int]
) -> Callable[..., Any]:
    """Return the condition that a constraint holds."""
    axes = {name: places[name] for name in formula.names if name in places}
    inputs = formula.names - axes.keys() - consts.keys()
    read = list(dict.fromkeys([*sorted(inputs), *(name for name, _ in axes.values())]))

    def condition(operation: str, **arguments: Any) -> None:
        scope = {name: arguments[name] for name in inputs} | consts
        scope |= {axis: arguments[name].shape[place] for axis, (name, place) in axes.items()}
        try:
            holds = bool(formula.value(scope))
        except (ValueError, IndexError, ArithmeticError, RuntimeError):
            holds = False
        if not holds:
            raise MetadataError(operation, (read or ["axes"])[0], "inconsistent", text)

    return _reading(condition, ["operation", *read])


def _reading(condition: Any, names: list[str]) -> Callable[..., Any]:
    kind = inspect.Parameter.KEYWORD_ONLY
    condition.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    return condition  # type: ignore[no-any-return]


def _refused_by_reference(case: Case) -> str:
    """Return what the reference raises for a case with integers that nothing is known of."""
    call = ALL[case.operation].call.prepare(case, 0, "cpu")
    try:
        getattr(reference, case.operation)(*call.args.values())
    except DefinitionError:
        return ""  # a mistake of the reference, which the call on the case names
    except Exception as error:
        return f"the reference raises {type(error).__name__}: {error}"
    return ""
