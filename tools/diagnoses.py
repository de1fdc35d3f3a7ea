"""Write docs/diagnoses.md, the catalogue of diagnoses, or list those without an entry.

    python tools/diagnoses.py            # exit status 1 if a diagnosis has no entry
    python tools/diagnoses.py --write    # write the page

The entries are in `harness/report/shared/diagnoses.toml`. The diagnoses are read from the source:
texts of a `Violation`, values of a `diagnosis` argument, and what the functions return that
choose a diagnosis. A part that is only known at run time is written `*`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from attnproof.harness.report.shared.diagnoses import ENTRIES, Entry, entry_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "diagnoses.md"
_FOLDERS = ("consumer", "oracles", "operations", "running/task")
_RETURNS = ("str", "str | tuple[str, ...]", "tuple[str, str]", "tuple[str, str] | None")
_OTHER_TEXTS = re.compile(
    # What these functions return is a part of a detail, a refusal of a case, a condition or a name.
    r"problem|unreal|^(condition_of|written_twice|brief|type_name|token_name|mask_name|_layer_name|_not_divided|why_not_joined|log|needs_wide_pool|key_of|in_place)$"
    r"|^(_advice|_keys|_error_kind|_place|_described|_reached|_named|names?|unmapped|_label|wait_message|root|output_in_both|about|heading|_many|\w*sentence)$"
)
_KINDS = {
    "bug": "a bug",
    "contract": "a contract: advice under `--contract engine`, a failure under `strict`",
    "look": "either: the class of the finding says which",
}


class Diagnosis(NamedTuple):
    """A diagnosis in the source."""

    text: str
    """Text with `*` for parts known at run time."""
    place: str
    """File and line, such as `harness/oracles/padding.py:29`."""
    oracle: str
    """"invariants" for the text of a violation, which either rule oracle may give; "" otherwise."""


def diagnoses() -> Iterator[Diagnosis]:
    """Yield the diagnoses in the source, in the order of files."""
    for folder in _FOLDERS:
        for path in sorted((ROOT / "harness" / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            name, constants = path.relative_to(ROOT).as_posix(), _constants(tree)
            for node in ast.walk(tree):
                for text, oracle in _of_node(node, constants):
                    if text.strip("*. "):
                        yield Diagnosis(text, f"{name}:{node.lineno}", oracle)


def without_entry() -> list[Diagnosis]:
    """Return the diagnoses that no entry describes."""
    return [diag for diag in diagnoses() if entry_of(diag.text, diag.oracle) is None]


def _of_node(node: ast.AST, constants: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", "")
        if name in ("Violation", "WrongAnswerError") and len(node.args) > 1:
            yield from ((text, "invariants") for text in _texts(node.args[1], constants))
        if name in ("Mistake", "_failure"):
            place = 0 if name == "_failure" and isinstance(node.args[0], ast.Constant) else 1
            yield from ((text, "") for text in _texts(node.args[place], constants))
        for keyword in node.keywords:
            if keyword.arg == "diagnosis":
                yield from ((text, "") for text in _texts(keyword.value, constants))
    elif isinstance(node, ast.FunctionDef) and _returns_diagnosis(node):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Return) and inner.value is not None:
                yield from ((text, "") for text in _texts(inner.value, constants))
    elif isinstance(node, ast.Yield):
        match node.value:
            case ast.Tuple(elts=[_, _, text]):  # field, right values and text: the runner's
                yield from ((each, "invariants") for each in _texts(text, constants))


def _returns_diagnosis(node: ast.FunctionDef) -> bool:
    """True if the function returns a diagnosis and not a part of another text."""
    if any(ast.unparse(arg.annotation or arg) == "Code" for arg in node.args.args):
        return False  # it writes a step, and names it
    returns = ast.unparse(node.returns) if node.returns else ""
    return returns in _RETURNS and not _OTHER_TEXTS.search(node.name)


def _constants(tree: ast.Module) -> dict[str, list[str]]:
    """Return the texts that names are bound to in the module or in its functions."""
    constants: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnproof.harness"):
            constants |= _imported(node)
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    constants.setdefault(name.id, []).extend(_texts(value, {}))
    return constants


def _imported(node: ast.ImportFrom) -> dict[str, list[str]]:
    """Return the texts of the constants that a module imports from another one."""
    path = ROOT.joinpath(*(node.module or "").split(".")[1:]).with_suffix(".py")
    names = {alias.name for alias in node.names if alias.name.isupper()}
    if not names or not path.is_file():
        return {}
    constants: dict[str, list[str]] = {}
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        target = line.targets[0] if isinstance(line, ast.Assign) else None
        if isinstance(line, ast.Assign) and isinstance(target, ast.Name) and target.id in names:
            constants[target.id] = _texts(line.value, {})
    return constants


def _texts(node: ast.expr, constants: dict[str, list[str]]) -> list[str]:
    """Return the texts that an expression may be."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in parts)]
        case ast.Name(id=name):
            return constants.get(name, [])
        case ast.IfExp(body=body, orelse=other):
            return _texts(body, constants) + _texts(other, constants)
        case ast.BoolOp(values=values):
            return [text for value in values for text in _texts(value, constants)]
        case ast.Tuple(elts=[first, *_]):
            return _texts(first, constants)
        case ast.Dict(values=values):
            return [text for value in values for text in _texts(value, constants)]
        case ast.Subscript(value=ast.Name(id=name)):
            return constants.get(name, [])
    return []


def page() -> str:
    """Return the page in Markdown."""
    by_entry: dict[str, dict[str, str]] = {entry.id: {} for entry in ENTRIES}
    for diag in diagnoses():
        entry = entry_of(diag.text, diag.oracle)
        if entry is not None:
            by_entry[entry.id].setdefault(diag.text.replace("*", "…"), diag.place)
    index = [line for kind in _KINDS for line in _index(kind)]
    return "\n".join([_HEAD, *index, *(_section(e, by_entry[e.id]) for e in ENTRIES)]) + "\n"


def _index(kind: str) -> list[str]:
    """Return a table of the entries of a kind, with the first sentence of each."""
    rows = [
        f"| [{entry.title}](#{entry.id}) | {re.split(r'[.;] ', entry.means)[0].rstrip('.')} |"
        for entry in ENTRIES
        if entry.kind == kind
    ]
    heading = _KINDS[kind].capitalize()
    return ["", f"**{heading}**", "", "| diagnosis | meaning |", "|---|---|", *rows]


def _section(entry: Entry, texts: dict[str, str]) -> str:
    listed = [f"- `{text}`" for text in sorted(texts, key=str.lower)]
    return "\n".join(
        [
            "",
            f'<a id="{entry.id}"></a>',
            "",
            f"## {entry.title}",
            "",
            entry.means,
            "",
            f"**A bug or a contract?** {_KINDS[entry.kind].capitalize()}.",
            "",
            f"**What to do.** {entry.do}",
            *(["", "Printed as:", "", *listed] if listed else []),
        ]
    )


_HEAD = """# Diagnoses

A finding's heading is its diagnosis: the known mistake that fits the wrong values. It is a \
hint, derived from the values alone; the expected and the actual value below it are exact. \
`tools/diagnoses.py --write` makes this page of `harness/report/shared/diagnoses.toml`, and a \
test finds each diagnosis of the code here. `…` stands for a name or a number.

*A bug* makes a result wrong or a call unsafe on a batch that engines make. *A contract* is a \
rule that engines survive without: malformed input that is not refused, or a wait. Two facts go \
before this table: the class of the finding ([candidates.md](candidates.md)), and the sentence \
"no engine makes it", which turns any diagnosis into a contract."""


def main() -> int:
    """Write the page, or list what has no entry; return the exit status."""
    missing = without_entry()
    for diag in missing:
        print(f"{diag.place}: no entry for the diagnosis: {diag.text}")
    if "--write" in sys.argv[1:] and not missing:
        PAGE.write_text(page(), encoding="utf-8")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
