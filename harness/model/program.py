"""Programs as data: the steps of a sequence, which are run as calls and shown as source.

Names, attributes and functions are words of the harness; a case supplies literals only. Nothing
of a case becomes code: `run` makes the calls, and `source` writes the same data with `repr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

_LITERALS = (bool, int, float, str, slice, type(None))


@dataclass(frozen=True)
class Name:
    """A variable, or an attribute of one: "metadata.seq_lens"."""

    path: str


class Statement:
    """A call or an assignment."""


@dataclass(frozen=True)
class Do(Statement):
    """A call of a variable or of an attribute, as a statement or as a value."""

    path: str
    args: tuple[Any, ...] = ()
    """Values: literals, lists, tuples and dicts of values, `Name` and `Do`."""
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Let(Statement):
    """An assignment of a value to a variable or to an attribute."""

    path: str
    value: Any


class Line(NamedTuple):
    """One step of a sequence."""

    label: str
    """Description of the step, such as "swap rows 0 and 2"."""
    statements: Sequence[Statement]
    """Calls and assignments that are run and shown in the snippet of a failure."""
    raises: bool = False
    """True if the step is malformed input, which must raise and change nothing."""
    kind: str = ""
    """Kind of the step as the case names it, for diagnoses; "" if no diagnosis reads it."""

    @property
    def code(self) -> str:
        """Python source of the step."""
        return source(self.statements)


class Code:
    """Variables as attributes, whose calls and assignments become statements.

    `code.row = code.batch.add(1)` adds the statement `row = batch.add(1)`.
    """

    _path: str
    statements: list[Statement]

    def __init__(self, path: str = "", statements: list[Statement] | None = None) -> None:
        vars(self).update(_path=path, statements=[] if statements is None else statements)

    def __getattr__(self, name: str) -> Code:
        return Code(f"{self._path}.{name}" if self._path else name, self.statements)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) or hasattr(type(self), name):  # it could not be read back
            raise AttributeError(f"{name} is a name of Code: give the variable another name")
        self.statements.append(Let(self.__getattr__(name)._path, self._data(value)))

    def __call__(self, *args: Any, **kwargs: Any) -> Do:
        """Add the call as a statement, and return it as a value."""
        call = Do(self._path, self._data(args), self._data(kwargs))
        self.statements.append(call)
        return call

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__getattr__("__setitem__")(key, value)

    def line(self, label: str, *, refused: bool = False, kind: str = "") -> Line:
        """Return the statements as a step; `refused` if it is malformed input."""
        label = f"{label}, which is refused" if refused else label
        return Line(label, self.statements, refused, kind)

    def _data(self, value: Any) -> Any:
        """Return the value as data; a call that is part of it is no statement any more."""
        match value:
            case Code():
                return Name(value._path)
            case Do():
                self.statements[:] = [each for each in self.statements if each is not value]
            case list() | tuple():
                return type(value)(map(self._data, value))
            case dict():
                return {key: self._data(each) for key, each in value.items()}
        return value


class Script(NamedTuple):
    """Program of a sequence: statements that use the candidate's names."""

    imports: dict[str, str]
    """Module of each imported name."""
    setup: Sequence[Statement]
    """Statements that create the objects which all steps share."""
    lines: tuple[Line, ...]

    @property
    def setup_code(self) -> str:
        """Python source of the imports and of the setup."""
        imports = [f"from {module} import {name}" for name, module in self.imports.items()]
        return "\n".join([*imports, "", source(self.setup)] if imports else [source(self.setup)])

    @property
    def names(self) -> set[str]:
        """Variables that the program reads or assigns."""
        statements = [*self.setup, *(each for line in self.lines for each in line.statements)]
        return {path.partition(".")[0] for each in statements for path in _paths(each)}


def import_names(script: Script) -> dict[str, Any]:
    """Return the objects that the script imports, by name."""
    return {name: getattr(import_module(home), name) for name, home in script.imports.items()}


def run(statements: Sequence[Statement], names: dict[str, Any]) -> None:
    """Run the statements on the variables `names`."""
    for statement in statements:
        if isinstance(statement, Let):
            owner, _, last = statement.path.rpartition(".")
            value = _value(statement.value, names)
            if owner:
                setattr(_value(Name(owner), names), last, value)
            else:
                names[last] = value
        else:
            _value(statement, names)


def source(statements: Sequence[Statement]) -> str:
    """Return the statements as lines of Python source."""
    return "\n".join(
        f"{each.path} = {_text(each.value)}" if isinstance(each, Let) else _text(each)
        for each in statements
    )


def _value(data: Any, names: dict[str, Any]) -> Any:
    """Return the value that the data describes; lists and dicts are new ones."""
    if type(data) in _LITERALS:  # most are: the patterns below take longer
        return data
    match data:
        case Name(path):
            first, *attributes = path.split(".")
            value = names[first]
            for attribute in attributes:
                value = getattr(value, attribute)
            return value
        case Do(path, args, kwargs):
            function = _value(Name(path), names)
            options = {name: _value(value, names) for name, value in kwargs.items()}
            return function(*(_value(value, names) for value in args), **options)
        case list() | tuple():
            return type(data)(_value(value, names) for value in data)
        case dict():
            return {key: _value(value, names) for key, value in data.items()}
    return _literal(data)


def _text(data: Any) -> str:
    """Return the Python expression of the data."""
    match data:
        case Name(path):
            return path
        case Do(path, args, kwargs):
            named = [f"{name}={_text(value)}" for name, value in kwargs.items()]
            return f"{path}({', '.join([*map(_text, args), *named])})"
        case list():
            return f"[{', '.join(map(_text, data))}]"
        case tuple():
            return f"({', '.join(map(_text, data))}{',' if len(data) == 1 else ''})"
        case dict():
            return f"{{{', '.join(f'{_literal(k)!r}: {_text(v)}' for k, v in data.items())}}}"
    return repr(_literal(data))


def _paths(data: Any) -> Iterator[str]:
    """Yield the variables and attributes in the data."""
    match data:
        case Name(path):
            yield path
        case Let(path, value):
            yield path
            yield from _paths(value)
        case Do(path, args, kwargs):
            yield path
            yield from _paths([*args, *kwargs.values()])
        case list() | tuple():
            for value in data:
                yield from _paths(value)
        case dict():
            yield from _paths(list(data.values()))


def _literal(data: Any) -> Any:
    # Exact types: the `repr` of a subclass could be anything.
    if type(data) not in _LITERALS:
        raise TypeError(f"{type(data).__name__} is no literal of a program")
    return data
