"""Candidates with names and arguments of their own: a table of calls, in a TOML file."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from attnproof import reference
from attnproof.harness.backports import tomllib
from attnproof.harness.escaping import escape_line
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.text import near_hint
from attnproof.harness.operations import ALL
from attnproof.harness.operations.builders.usual_fields import FIELDS
from attnproof.harness.running.engine_stub import STUB
from attnproof.harness.running.errors import UsageError

ADAPTED = "_attnproof_adapted"
"""Attribute of what a table offers: the candidate's own function or class."""
NEW = "new"
"""Key of a class's table with the call that instantiates the candidate's class."""
_OBJECT = "it"
"""Name of the candidate's object in the expressions of a class."""
_ALIKE = 0.85
"""Least similarity of two names, of 1, that is taken for a slip of the pen."""
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class AdapterError(Exception):
    """An expression that names what the candidate's module does not have."""


class Adapter(msgspec.Struct, forbid_unknown_fields=True):
    """The table of a candidate: Python expressions by the names of operations.

    An expression has the operation's arguments and the names of the module.
    """

    module: str
    """Path from the table's folder, or dotted name."""
    functions: dict[str, str] = {}
    classes: dict[str, dict[str, str]] = {}
    """Expressions by method or attribute: `new` instantiates, and `it` is the object."""
    builders: dict[str, dict[str, str]] = {}
    """Expressions by usual field of metadata, for each builder of the module: `new` instantiates
    it, and `it` is the metadata that it builds."""
    interface: str = ""
    stub: str = ""
    """Engine whose stub the module imports where the engine is not installed."""


def read_adapter(path: Path) -> Adapter:
    """Return the table of a file (UsageError)."""
    try:
        adapter = msgspec.convert(tomllib.loads(read_regular(path).decode()), Adapter)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"candidate file {path}: {escape_line(str(error))}") from None
    if adapter.interface not in ("", *INTERFACES):
        hint = _near(adapter.interface, INTERFACES)
        raise UsageError(f"{path}: interface: {adapter.interface!r} is no interface{hint}")
    if adapter.stub not in ("", STUB):
        hint = near_hint(adapter.stub, [STUB], 0.5)
        raise UsageError(f"{path}: stub is {adapter.stub!r}: {hint}expected {STUB}")
    known = {name for operation in ALL.values() for name in operation.call.names(operation.name)}
    for name in (*adapter.functions, *adapter.classes):
        place = _place(path, name)
        if name not in known:
            raise UsageError(f"{place}: no operation has this name{_near(name, known)}")
        is_class = inspect.isclass(getattr(reference, name))
        if is_class != (name in adapter.classes):
            table = f"[classes.{name}]" if is_class else "[functions]"
            raise UsageError(f"{place}: it belongs into the table {table}")
    _check_builders(path, adapter)
    for name, text in adapter.functions.items():
        _check_expression(_place(path, name), text)
    for name, members in adapter.classes.items():
        if NEW not in members:
            raise UsageError(f"{_place(path, name)}: the call that instantiates it is missing: new")
        for member, text in members.items():
            place = _place(path, name, member)
            # Any other name is an attribute of the object, which the class may not show.
            methods = [NEW, *_methods(name)]
            hint = "" if member in methods else _near(member, methods, _ALIKE)
            if hint:
                raise UsageError(f"{place}: {name} has no method of this name{hint}")
            _check_expression(place, text)
    return adapter


def _check_builders(path: Path, adapter: Adapter) -> None:
    """Raise UsageError for a field that metadata does not have, and for what is no expression."""
    for name, members in adapter.builders.items():
        for member, text in members.items():
            place = _place(path, name, member)
            if member not in (NEW, *FIELDS):
                near = _near(member, (NEW, *FIELDS)) or f": they are {', '.join(FIELDS)}"
                raise UsageError(f"{place}: metadata has no usual field of this name{near}")
            _check_expression(place, text)


def target_of(path: Path, adapter: Adapter) -> str:
    """Return the module as the target of a candidate."""
    name = adapter.module
    is_path = name.endswith(".py") or "/" in name
    return str((path.parent / name).resolve()) if is_path else name


def adapted(path: Path, adapter: Adapter, module: Any) -> ModuleType:
    """Return the module with the operations of the table; raise AdapterError."""
    offers = ModuleType(module.__name__)
    vars(offers).update(vars(module))
    for name, text in adapter.functions.items():
        ours = getattr(reference, name)
        setattr(offers, name, _function(_place(path, name), inspect.signature(ours), text, module))
    for name, members in adapter.classes.items():
        setattr(offers, name, _class(path, name, members, module))
    for name, members in adapter.builders.items():
        setattr(offers, name, _builder(path, name, members, module))
    return offers


def _class(path: Path, name: str, members: dict[str, str], module: Any) -> type[Any]:
    """Return a class whose members are the table's, and else those of the candidate's object."""
    ours, methods = getattr(reference, name), _methods(name)
    body: dict[str, Any] = {"__getattr__": lambda self, name: getattr(vars(self)[_OBJECT], name)}
    body["__module__"] = module.__name__  # whose names choose the interface
    body |= {method: _same(method) for method in methods}
    for member, text in members.items():
        place = _place(path, name, member)
        if member == NEW:
            instantiate = _function(place, inspect.signature(ours), text, module)
            body["__init__"] = _initializer(instantiate)
            body[ADAPTED] = getattr(instantiate, ADAPTED)
        elif member in methods:
            signature = inspect.signature(getattr(ours, member))
            own = list(signature.parameters.values())[1:]
            body[member] = _method(place, signature.replace(parameters=own), text, module)
        else:
            body[member] = property(_method(place, inspect.Signature(), text, module))
    return type(name, (), body)


def _builder(path: Path, name: str, members: dict[str, str], module: Any) -> type[Any]:
    """Return a builder of the module, whose metadata has the fields of the table too."""
    if not hasattr(module, name) and NEW not in members:
        hint = _near(name, vars(module))
        raise AdapterError(f"{_place(path, name)}: {module.__name__} has no such class{hint}")
    arguments = ", ".join([*inspect.signature(getattr(reference, name)).parameters])
    new = {NEW: members.get(NEW, f"{name}({arguments})")}
    builder = _class(path, name, new, module)
    setattr(builder, ADAPTED, getattr(module, name, builder))
    readers = {
        field: _reader(_place(path, name, field), text, module)
        for field, text in members.items()
        if field != NEW
    }

    def with_fields(method: str) -> Any:
        build = getattr(builder, method)
        return lambda self, *args, **kwargs: _Metadata(build(self, *args, **kwargs), readers)

    for method in ("build", "build_for_cudagraph_capture"):
        setattr(builder, method, with_fields(method))
    return builder


class _Metadata:
    """Metadata of a candidate with further fields, which expressions compute."""

    def __init__(self, metadata: Any, readers: dict[str, Any]) -> None:
        vars(self)[_OBJECT] = metadata
        vars(self).update({name: read(self) for name, read in readers.items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)[_OBJECT], name)


def _initializer(function: Any) -> Any:
    return lambda self, *args, **kwargs: setattr(self, _OBJECT, function(*args, **kwargs))


def _reader(place: str, text: str, module: Any) -> Any:
    """Return a function of metadata that reads a field; an attribute it lacks is the table's."""
    read = _method(place, inspect.Signature(), text, module)

    def read_field(metadata: Any) -> Any:
        try:
            return read(metadata)
        except AttributeError as error:
            raise AdapterError(f"{place}: {error}") from None

    return read_field


def _same(name: str) -> Any:
    """Return the method of the candidate's object."""
    return lambda self, *args, **kwargs: getattr(vars(self)[_OBJECT], name)(*args, **kwargs)


def _method(place: str, signature: inspect.Signature, text: str, module: Any) -> Any:
    first = Parameter(_OBJECT, Parameter.POSITIONAL_OR_KEYWORD)
    with_object = signature.replace(parameters=[first, *signature.parameters.values()])
    function = _function(place, with_object, text, module)
    return lambda self, *args, **kwargs: function(vars(self)[_OBJECT], *args, **kwargs)


def _function(place: str, signature: inspect.Signature, text: str, module: Any) -> Any:
    """Return the expression as a function with the arguments of a signature."""
    _check_names(place, signature, text, module)
    defaults = {
        parameter.name: parameter.default
        for parameter in signature.parameters.values()
        if parameter.default is not Parameter.empty
    }
    file, _, line = place.partition(": ")[0].rpartition(":")
    source = "\n" * (int(line) - 1) + f"lambda _defaults: lambda {_head(signature)}: ({text})"
    function = eval(compile(source, file, "eval"), vars(module))(defaults)
    names = (node.id for node in _parsed(text) if isinstance(node, ast.Name))
    used = (vars(module).get(name) for name in names)
    setattr(function, ADAPTED, next(filter(callable, used), function))
    return function


def _parsed(text: str) -> list[ast.AST]:
    """Return the nodes of an expression, the outermost first."""
    return list(ast.walk(ast.parse(f"({text})", mode="eval")))


def _head(signature: inspect.Signature) -> str:
    """Return the parameters as source; their defaults are those of `_defaults`."""
    bare = [
        parameter.replace(annotation=Parameter.empty) for parameter in signature.parameters.values()
    ]
    shown = [
        p if p.default is Parameter.empty else p.replace(default=_Default(p.name)) for p in bare
    ]
    return str(inspect.Signature(shown))[1:-1]


class _Default(str):
    """Name of a parameter, shown as the expression of its default."""

    def __repr__(self) -> str:
        return f"_defaults[{str(self)!r}]"


def _check_names(place: str, signature: inspect.Signature, text: str, module: Any) -> None:
    """Raise AdapterError for a name that nothing defines, or a call that does not fit."""
    nodes = _parsed(text)
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}  # of a lambda
    known = {*signature.parameters, *vars(module), *bound}
    for node in names:
        if node.id not in known and not hasattr(builtins, node.id):
            raise AdapterError(
                f"{place}: {node.id} is neither an argument ({', '.join(signature.parameters)}) "
                f"nor a name of {module.__name__}{_near(node.id, known)}"
            )
    for call in nodes:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            _check_call(place, call, vars(module).get(call.func.id))


def _check_call(place: str, call: ast.Call, function: Any) -> None:
    """Raise AdapterError for arguments that a function of the module does not have."""
    if any(isinstance(part, ast.Starred) for part in call.args) or not callable(function):
        return
    try:
        theirs = inspect.signature(function)
    except (TypeError, ValueError):  # of a compiled function
        return
    keywords = [keyword.arg for keyword in call.keywords]
    if None in keywords:
        return
    try:
        theirs.bind(*call.args, **dict.fromkeys(map(str, keywords)))
    except TypeError as error:
        names = [name for name, p in theirs.parameters.items() if p.kind in _NAMED]
        unknown = next((str(key) for key in keywords if key not in names), "")
        hint = _near(unknown, names) if unknown else ""
        problem = f"no argument {unknown}{hint}" if unknown else str(error)
        raise AdapterError(f"{place}: {ast.unparse(call.func)}{theirs}: {problem}") from None


def unused_notes(candidates: Iterable[str], ops: str) -> list[str]:
    """Return a sentence for each expression of tables that leaves arguments of its call unused.

    `candidates` and `ops` are as typed. Raises UsageError for a table that is refused.
    """
    patterns = ops.split(",") if ops else ["*"]
    tables = [
        (path, read_adapter(path)) for path in map(Path, candidates) if path.suffix == ".toml"
    ]
    return [
        f"{_place(path, name)}: the expression uses no {', '.join(unused)}: the cases that set "
        f"{'it' if len(unused) == 1 else 'them'} may fail"
        for path, adapter in tables
        for name, text in adapter.functions.items()
        if any(fnmatch(name, pattern.strip()) for pattern in patterns)
        and (unused := _unused(name, text))
    ]


def _unused(name: str, text: str) -> list[str]:
    used = {node.id for node in _parsed(text) if isinstance(node, ast.Name)}
    return [p for p in inspect.signature(getattr(reference, name)).parameters if p not in used]


def _check_expression(place: str, text: str) -> None:
    try:
        ast.parse(f"({text})", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{place}: {text!r} is no expression: {error.args[0]}") from None


def _methods(name: str) -> list[str]:
    """Return the public methods of a class of the reference."""
    members = inspect.getmembers_static(getattr(reference, name), inspect.isfunction)
    return [member for member, _ in members if not member.startswith("_")]


def _near(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return a question for the known name that is most like another one, "" without."""
    return f": {near_hint(name, known, least)}".rstrip(" :")


def _place(path: Path, name: str, member: str = "") -> str:
    """Return file, line and name of an entry, such as "acme.toml:4: BlockTables.new"."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    tables = {f"[{table}.{name}]" for table in ("classes", "builders")}
    first = next((n for n, line in enumerate(lines) if line.strip() in tables), 0)
    entry = re.compile(rf"\s*[\"']?{re.escape(member or name)}[\"']?\s*=")
    number = next((n for n, line in enumerate(lines) if n >= first and entry.match(line)), first)
    return f"{path.name}:{number + 1}: {f'{name}.{member}' if member else name}"
