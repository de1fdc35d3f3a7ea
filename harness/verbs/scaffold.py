"""`attnproof init`: a file that defines an operation, from the signature of a function or class.

It is parsed and not imported, as no process that judges imports a candidate.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from attnproof.harness.documents import page_address
from attnproof.harness.escaping import escape_line, shell_command
from attnproof.harness.model.files import DamagedError, read_regular
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import InitOptions
from attnproof.harness.verbs.usual_names import (
    FLAGS,
    INTEGERS,
    MASKS,
    MIRRORS,
    NUMBERS,
    PAGES,
    PER_ROW,
    ROLES,
    WITHOUT_VALUES,
    WRITTEN,
)

_BODY = """\
    # 4. Write what it computes: loops over rows and tokens that a reader can compare with the
    #    text above. It gets well-formed arguments only, and changes none but written ones.
"""
_REFUSAL = """\
    # 5. Refuse what the state does not allow; no case has such a step:
    #    raise MetadataError("{0}", "{1}", {1}, "at most the free entries")
"""
_LEFT_OUT = """\
    # Left out, as no case has a value: {}. A table of a candidate may pass it on
    # ({}, "Other names and arguments").
"""
_UNWRITTEN = "    raise NotImplementedError\n"
_Target = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True)
class _Parameter:
    name: str
    hint: str
    note: str = ""
    default: str = ""
    keyword_only: bool = False

    def __str__(self) -> str:
        default = f" = {self.default}" if self.default else ""
        note = f"  # {self.note}" if self.note else ""
        return f"    {self.name}: {self.hint}{default},{note}\n"


def write_scaffold(options: InitOptions) -> None:
    """Write the file and say what comes next. Raise UsageError before anything is written."""
    file, _, name = options.source.rpartition(":")
    if not file or not name.isidentifier():
        raise UsageError(f"--from {escape_line(options.source)}: write file.py:function")
    target = _target(Path(file), name)
    if name in ALL:
        raise UsageError(
            f"{name} is an operation of attnproof already: attnproof verify --candidate "
            f"{escape_line(file)} --ops {name}"
        )
    text, shown = scaffold(target, file), escape_line(options.path)
    try:
        with options.path.open("x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{shown} exists and is kept: name another file") from None
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror}") from None
    command = ["attnproof", "verify", "--candidate", file, "--operations", str(options.path)]
    say(f"wrote {options.path}: follow its numbered steps, then run\n    {shell_command(command)}")


def _target(path: Path, name: str) -> _Target:
    """Return the function or class of a file (UsageError)."""
    shown = escape_line(path)
    try:
        tree = ast.parse(read_regular(path).decode())
    except SyntaxError as error:
        raise UsageError(f"{shown}:{error.lineno} cannot be parsed: {error.msg}") from None
    except (OSError, ValueError, DamagedError) as error:
        text = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{shown}: {escape_line(text)}") from None
    named = {node.name: node for node in tree.body if isinstance(node, _Target)}
    if name not in named:
        listed = ", ".join(sorted(key for key in named if not key.startswith("_"))) or "none"
        raise UsageError(f"{shown} has no function or class {name}; it has {listed}")
    functions = _functions(named[name])
    if not functions:
        raise UsageError(f"{shown}:{named[name].lineno}: {name} has no public method")
    for function in functions:
        for rest in (function.args.vararg, function.args.kwarg):
            if rest is not None:
                raise UsageError(
                    f"{shown}:{function.lineno}: *{rest.arg} declares no arguments: name each one"
                )
    return named[name]


def _functions(target: _Target) -> list[ast.FunctionDef]:
    """Return the function, or the methods of a class that are its instantiation and its steps."""
    if isinstance(target, ast.FunctionDef):
        return [target]
    parts = (node for node in target.body if isinstance(node, ast.FunctionDef))
    methods = [node for node in parts if not node.decorator_list]  # a property is no step
    return [node for node in methods if node.name == "__init__" or not node.name.startswith("_")]


def scaffold(target: _Target, file: str) -> str:
    """Return the text of a definition of the function or class."""
    is_class = isinstance(target, ast.ClassDef)
    functions = _functions(target)
    steps = [function for function in functions if is_class and function.name != "__init__"]
    refusing = next(filter(_own_parameters, steps), None)
    parts = [_signature(f, with_steps=f is functions[0], refuses=f is refusing) for f in functions]
    body = "\n".join(textwrap.indent(part, "    ") for part in parts) if is_class else parts[0]
    words = set(re.findall(r"\w+", "\n".join(_code_of(part) for part in parts)))
    error = {"MetadataError"} if refusing is not None else set[str]()
    names = sorted(words & {"Array", "Int", *ROLES} | {"operation"} | error)
    decorator = (
        "# 1. Name the attributes to compare after each step: state=('num_rows',).\n"
        "@operation(state=())\n"
        f"class {target.name}:\n"
        f'    """{_summary_of(target)}"""\n\n'
        if is_class
        else "# 1. Write independent=True if the result of a row does not depend on other rows.\n"
        "@operation(independent=False)\n"
    )
    return (
        f'"""An operation of {Path(file).name}, to verify candidates against."""\n\n'
        + "from typing import Annotated\n\n" * ("Annotated" in words)
        + "import torch\n\n" * ("torch" in words)
        + _imports(names)
        + decorator
        + body
    )


def _imports(names: list[str]) -> str:
    line = f"from attnproof.define import {', '.join(names)}\n\n\n"
    listed = "".join(f"    {name},\n" for name in names)
    return line if len(line.rstrip()) <= 88 else f"from attnproof.define import (\n{listed})\n\n\n"


def _code_of(text: str) -> str:
    """Return the lines that are no comment."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def _summary_of(target: _Target) -> str:
    summary = (ast.get_docstring(target) or "").split("\n\n")[0].replace('"""', "'''")
    return " ".join(summary.split()) or "Say in one sentence what it computes."


def _own_parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of the parameters that the file declares."""
    return [parameter.name for parameter in _parameters(function)]


def _signature(function: ast.FunctionDef, *, with_steps: bool, refuses: bool) -> str:
    """Return a function with declarations, perhaps with comments on what is left to write."""
    parameters = list(_parameters(function))
    result = _result(function, parameters)
    star = next((i for i, parameter in enumerate(parameters) if parameter.keyword_only), None)
    lines = [str(parameter) for parameter in parameters]
    if star is not None:
        lines.insert(star, "    *,\n")
    if function.args.args[:1] and function.args.args[0].arg == "self":
        lines.insert(0, "    self,\n")
    steps = (
        "    # 2. Give each Array its shape, such as ('R',) or ('N+1',), and its limits.\n",
        "    # 3. Declare what is returned; '?' says that the values decide the size.\n",
    )
    before, after = steps if with_steps else ("", "")
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    absent = ", ".join(name for name in names if WITHOUT_VALUES.fullmatch(name))
    before += _LEFT_OUT.format(absent, page_address("candidates")) if absent else ""
    returned = "None" if function.name == "__init__" else result
    body = _BODY if with_steps else ""
    body += _REFUSAL.format(function.name, parameters[0].name) if refuses else ""
    return (
        f"def {function.name}(\n{before}{''.join(lines)}{after}) -> {returned}:\n"
        f'    """{_summary_of(function)}"""\n{body}{_UNWRITTEN}'
    )


def _parameters(function: ast.FunctionDef) -> Iterator[_Parameter]:
    args = function.args
    listed = [(arg, False) for arg in (*args.posonlyargs, *args.args) if arg.arg != "self"]
    defaults: list[ast.expr | None] = [None] * (len(listed) - len(args.defaults))
    defaults += [*args.defaults, *args.kw_defaults]
    listed += [(arg, True) for arg in args.kwonlyargs]
    both = [*zip(listed, defaults, strict=True)]
    both = [pair for pair in both if not WITHOUT_VALUES.fullmatch(pair[0][0].arg)]
    # A parameter without a default may not follow one that keeps its own.
    positional = [pair for pair in both if not pair[0][1]]
    kept = takewhile(lambda pair: _is_kept(pair[1]), reversed(positional))
    with_default = {arg.arg for (arg, _), _ in kept} | {arg.arg for arg in args.kwonlyargs}
    taken: set[str] = set()
    axes = iter(["N", *(f"N{index}" for index in range(2, len(listed) + 2))])
    for (arg, keyword_only), default in both:
        annotated = ast.unparse(arg.annotation) if arg.annotation is not None else ""
        value = _value(default)
        hint, note = _declared(arg.arg, annotated, value, taken, axes)
        if function.name == "__init__" and not annotated and hint.endswith("least=0)]"):
            hint, note = "int", "or Annotated[torch.Tensor, Array(...)]"
        text = ""
        if _is_kept(default) and arg.arg in with_default:
            text = repr(value)
        if value is None and default is not None:
            hint = f"{hint} | None"
        yield _Parameter(arg.arg, hint, note, text, keyword_only)


def _is_kept(default: ast.expr | None) -> bool:
    """True for a default that the file may repeat."""
    value = _value(default)
    return default is not None and (value is None or type(value) in (bool, int))


def _value(default: ast.expr | None) -> object:
    """Return a literal, or any other expression as it is."""
    try:
        return None if default is None else ast.literal_eval(default)
    except ValueError:
        return default


def _declared(
    name: str, annotated: str, default: object, taken: set[str], axes: Iterator[str]
) -> tuple[str, str]:
    """Return the annotation and a note of a parameter; `taken` are aliases of others."""
    is_tensor = "Tensor" in annotated
    kind = annotated.removesuffix(" | None").removeprefix("Optional[").removesuffix("]")
    is_number = kind == "int" or (type(default) is int and not is_tensor)
    for alias, usual in ROLES.items():
        contradicts = is_tensor if alias in INTEGERS else is_number
        if name in usual and alias not in taken and not contradicts:
            taken.add(alias)
            return alias, ""
        if name.removesuffix("_cpu") in usual and name.endswith("_cpu") and alias in MIRRORS:
            return f'Annotated[torch.Tensor, Array("{MIRRORS[alias]}", on_cpu=True)]', ""
    if kind == "bool" or type(default) is bool or (not annotated and FLAGS.fullmatch(name)):
        return "bool", ""
    if name in PAGES and not is_number:
        hint = f'Annotated[torch.Tensor, Array(shape=("{PAGES[name]}",), least=0)]'
        return hint, "by values=..., or written=True"
    is_per_row = PER_ROW.fullmatch(name)
    if is_number or (not annotated and not is_per_row and NUMBERS.fullmatch(name)):
        if isinstance(default, int) and default < 0:
            return f"Annotated[int, Int(least={default})]", ""
        return "int", "or Annotated[int, Int(least=1)]"
    note = "" if is_tensor or not annotated else f"was {annotated}"
    axis = "R" if is_per_row else next(axes)
    if MASKS.fullmatch(name):
        return f'Annotated[torch.Tensor, Array("flags", ("{axis}",))]', note
    if WRITTEN.fullmatch(name):
        return f'Annotated[torch.Tensor, Array(shape=("{axis}",), written=True)]', note
    return f'Annotated[torch.Tensor, Array(shape=("{axis}",), least=0)]', note


def _result(function: ast.FunctionDef, parameters: list[_Parameter]) -> str:
    annotated = ast.unparse(function.returns) if function.returns is not None else ""
    if annotated in ("int", "bool", "float", "None"):
        return annotated
    if not annotated and any("written=True" in parameter.hint for parameter in parameters):
        return "None"
    array = 'Annotated[torch.Tensor, Array(shape=("?",))]'
    match = re.fullmatch(r"[tT]uple\[(.+)\]", annotated)
    if match and "..." not in annotated and "[" not in match[1]:
        parts = [part.strip() for part in match[1].split(",")]
        return f"tuple[{', '.join(p if p in ('int', 'bool', 'float') else array for p in parts)}]"
    return array


__all__ = ["scaffold", "write_scaffold"]
