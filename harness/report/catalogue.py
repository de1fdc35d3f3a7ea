"""The catalogue of operations, for `attnproof list` and `attnproof list --markdown`.

All of it comes from the operations and from the reference's docstrings, so that it cannot
differ from the code that is verified.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from attnproof import reference
from attnproof.harness.interfaces import interfaces_of
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import ORACLES
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by
from attnproof.reference.definition.definition import definition_of


class Member(NamedTuple):
    """A function, or a method of a class."""

    signature: str
    """Signature such as `build_slot_mapping(query_start_loc, ...) -> Tensor`."""
    text: str
    """Docstring of the function or method."""


class Entry(NamedTuple):
    """One operation in the catalogue."""

    operation: Operation
    members: tuple[Member, ...]
    oracles: tuple[str, ...]
    """Oracles that check something in the operation's cases."""
    boundaries: tuple[str, ...]

    @property
    def engines(self) -> str:
        """Interfaces that have the operation, releases of vLLM as numbers."""
        names = interfaces_of(self.operation.name, self.operation.section)
        releases = [name.removeprefix("vllm-") for name in names if name.startswith("vllm-")]
        others = [name for name in names if not name.startswith("vllm-")]
        return ", ".join([*(["vllm " + " ".join(releases)] if releases else []), *others])

    @property
    def place(self) -> str:
        """Location of the computation in `optimized`: host, device or shared."""
        if not self.operation.section:
            return "not offered"
        if self.operation.built_in.shared:
            return f"shared by both packages: {self.operation.built_in.shared}"
        return "host and device" if self.operation.built_in.kernels else "host"


def entry_of(operation: Operation) -> Entry:
    """Return the operation's entry; judge one case to find the oracles that apply."""
    cases = list(operation.inputs.boundaries())
    offer = offered_by(reference, operation)
    checks = judge(Trial(operation, cases[0][1], offer, offer, "cpu")).checks
    used = {name for name, count in zip(ORACLES, checks, strict=True) if count} | {"process"}
    names = operation.call.names(operation.name)
    return Entry(
        operation,
        tuple(member for name in names for member in _members(name)),
        tuple(name for name in ORACLES if name in used),
        tuple(name for name, _ in cases),
    )


def _members(name: str) -> Iterator[Member]:
    """Yield the function, or the class and its public methods."""
    offered = getattr(reference, name)
    if not inspect.isclass(offered):
        yield Member(f"{name}{_signature(offered)}", inspect.getdoc(offered) or "")
        return
    yield Member(f"class {name}{_signature(offered)}", inspect.getdoc(offered) or "")
    for attribute in dir(offered):
        value = inspect.getattr_static(offered, attribute)
        method = getattr(value, "__func__", value)
        if inspect.isfunction(method) and not attribute.startswith("__"):
            documented = inspect.getdoc(getattr(offered, attribute)) or ""
            yield Member(f"{name}.{attribute}{_signature(method)}", documented)


def _signature(function: Any) -> str:
    """Return the signature without the quotes of annotations, and without `self`."""
    try:
        signature = inspect.signature(function, eval_str=definition_of(function) is not None)
    except NameError:  # an annotation that only type checkers import
        signature = inspect.signature(function)
    except ValueError:
        return "()"
    kept = [
        p.replace(annotation=_shown(p.annotation))
        for p in signature.parameters.values()
        if p.name not in ("self", "cls")
    ]
    shown = _shown(signature.return_annotation)
    return str(signature.replace(parameters=kept, return_annotation=shown)).replace("'", "")


class _Text:
    """An annotation that is printed as a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _shown(annotation: Any) -> Any:
    """Return what to print for an annotation: of a declared argument its meaning and sizes."""
    parts = [
        part.__name__ if isinstance(part, type) and not get_args(part) else repr(_shown(part))
        for part in get_args(annotation)
    ]
    if get_origin(annotation) is tuple:
        return _Text(f"tuple[{', '.join(parts)}]")
    if get_origin(annotation) in (Union, UnionType):
        return _Text(" | ".join(parts).replace("NoneType", "None"))
    declared = getattr(annotation, "__metadata__", ())
    if not declared or str(declared[-1]) == "<object>":
        return getattr(annotation, "__origin__", annotation) if declared else annotation
    return _Text(str(declared[-1]))


def page(entries: list[Entry]) -> str:
    """Return a Markdown page on all operations."""
    ordered = sorted(entries, key=lambda entry: entry.operation.section)
    return "\n\n".join([_HEAD, _table(ordered), *map(_section, ordered)]) + "\n"


_HEAD = """# Operations

The operations that `attnproof verify` verifies. `attnproof list --markdown` prints this page from \
the operations and the reference's docstrings; a test compares the two.

*Boundaries* are cases that are always run. *Faults* are ways to malform an input, each with the \
error that the call must raise."""


def _table(entries: list[Entry]) -> str:
    rows = [
        "| SPEC | operation | what it computes | interfaces | `optimized` |",
        "|---|---|---|---|---|",
    ]
    for entry in entries:
        operation = entry.operation
        place = entry.place.partition(":")[0]
        link = f"[`{operation.name}`](#{_anchor(operation.name)})"
        rows.append(
            f"| {operation.section} | {link} | {operation.summary} | {entry.engines} | {place} |"
        )
    return "\n".join(rows)


def _anchor(name: str) -> str:
    return name.lower()


def _section(entry: Entry) -> str:
    operation = entry.operation
    lines = [
        f"## {operation.name}",
        "",
        f"{operation.specification}: {operation.summary}. In `optimized`: {entry.place}.",
        "",
    ]
    if operation.inputs.machine is not None:
        used = ", ".join(f"`{name}`" for name in operation.call.names(operation.name))
        lines += [f"A sequence of steps through {used}.", ""]
    else:
        for member in entry.members:
            lines += ["```python", member.signature, "```", "", member.text, ""]
    lines.append(f"- Oracles: {', '.join(entry.oracles)}")
    lines.append(f"- Boundaries: {'; '.join(entry.boundaries)}")
    faults = [
        f"{name} ({fault.error.__name__} on `{fault.named}`)"
        for name, fault in operation.inputs.faults.items()
    ]
    if faults:
        lines.append(f"- Faults: {'; '.join(faults)}")
    return "\n".join(lines)
