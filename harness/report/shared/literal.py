"""A case as Python source."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import msgspec

from attnproof.harness.model.case import Case

IMPORTS = "from attnproof.harness.model.case import Batch, Case"
"""The line that a literal needs."""
_WIDTH = 88
_ENDS = 12
"""Lines of each end of a long list that `shown_literal` keeps."""


def case_literal(case: Case) -> str:
    """Return an expression `Case(...)` that evaluates to an equal case after `IMPORTS`."""
    return _literal(case, 0, 0)


def shown_literal(case: Case) -> str:
    """Return the literal without the middle of long lists: it may have 32,768 ids."""
    kept: list[str] = []
    for indent, run in groupby(case_literal(case).splitlines(), _indent):
        lines = list(run)
        left = len(lines) - 2 * _ENDS
        if left > 1:
            text = f"{indent}# {left:,} lines left out; the case's file has them"
            lines[_ENDS:-_ENDS] = [text]
        kept += lines
    return "\n".join(kept)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def example_line(case: Case) -> str:
    """Return the Hypothesis decorator with which a test always runs this case first."""
    inner = _literal(case, 0, len("@example()"))
    if "\n" not in inner:
        return f"@example({inner})"
    return f"@example(\n{' ' * 4}{_literal(case, 4, 1)},\n)"


def _literal(value: Any, indent: int, used: int) -> str:
    """Return `value` as source that starts `used` columns into a line indented by `indent`."""
    flat = _flat(value)
    if indent + used + len(flat) <= _WIDTH and not _has_steps(value):
        return flat
    if isinstance(value, msgspec.Struct):
        items = [
            f"{name}={_literal(item, indent + 4, len(name) + 2)}"
            for name, item in _set_fields(value)
        ]
        return _broken(f"{type(value).__name__}(", items, ")", indent)
    if isinstance(value, dict):
        items = [
            f"{key!r}: {_literal(item, indent + 4, len(repr(key)) + 3)}"
            for key, item in value.items()
        ]
        return _broken("{", items, "}", indent)
    if isinstance(value, list | tuple) and value:
        start, end = "()" if isinstance(value, tuple) else "[]"
        if any(isinstance(item, list | tuple | dict) for item in value):
            items = [_literal(item, indent + 4, 1) for item in value]
        else:
            items = _filled([_flat(item) for item in value], indent + 4)
        return _broken(start, items, end, indent)
    return flat


def _has_steps(value: Any) -> bool:
    """True if `value` holds a list of several dicts: steps are printed one per line."""
    if isinstance(value, Case):
        return _has_steps(value.params)
    if isinstance(value, dict):
        return any(map(_has_steps, value.values()))
    return isinstance(value, list) and sum(isinstance(item, dict) for item in value) > 1


def _flat(value: Any) -> str:
    """Return `value` as source on one line."""
    if isinstance(value, msgspec.Struct):
        fields = ", ".join(f"{name}={_flat(item)}" for name, item in _set_fields(value))
        return f"{type(value).__name__}({fields})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_flat(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flat, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_flat, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        # repr gives inf and nan, which are no Python names.
        return f"float({str(value)!r})"
    return repr(value)


def _set_fields(value: msgspec.Struct) -> list[tuple[str, Any]]:
    """Return the fields that differ from their defaults, in order."""
    fields = []
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if default is msgspec.NODEFAULT or type(item) is not type(default) or item != default:
            fields.append((field.name, item))
    return fields


def _broken(start: str, items: list[str], end: str, indent: int) -> str:
    pad = " " * (indent + 4)
    return f"{start}\n" + "".join(f"{pad}{item},\n" for item in items) + f"{' ' * indent}{end}"


def _filled(items: list[str], indent: int) -> list[str]:
    """Pack short items into lines: thousands of numbers should not take as many lines."""
    lines: list[str] = []
    for item in items:
        if lines and indent + len(lines[-1]) + len(item) + 3 <= _WIDTH:
            lines[-1] += f", {item}"
        else:
            lines.append(item)
    return lines
