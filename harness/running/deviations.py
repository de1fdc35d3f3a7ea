"""Known deviations: a TOML file of failures that are understood, and which failures they explain.

docs/candidates.md describes the file. Its expressions are Python, as trusted as the
candidate itself, and get nothing but the names below.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import msgspec

from harness.model.case import Case
from harness.model.deviation import Deviation
from harness.model.verdict import CONSUMER, ORACLES, Failure
from harness.operations import ALL
from harness.running.errors import UsageError

ANY_VERSION = "*"
_FUNCTIONS = {
    name: getattr(builtins, name)
    for name in (
        *("abs", "all", "any", "bool", "dict", "enumerate", "int", "isinstance", "len", "list"),
        *("max", "min", "range", "reversed", "set", "sorted", "str", "sum", "tuple", "zip"),
    )
} | {"accumulate": accumulate, "pairwise": pairwise}


class DeviationError(UsageError):
    """The file of known deviations is at fault: one line with file, entry and what to do."""


class Explained(NamedTuple):
    """The failures of one case, sorted out."""

    unknown: tuple[Failure, ...]
    known: tuple[tuple[Deviation, Failure], ...]


def load(path: str, version: str) -> tuple[Deviation, ...]:
    """The deviations that hold for a version of the candidate's package (DeviationError).

    `version` is "" where it is not known; then every entry must hold for any version.
    """
    entries = _entries(path)
    known = [deviation for where, deviation in entries if _holds(deviation, version, where)]
    seen: set[tuple[str, str]] = set()
    for deviation in known:
        for operation in deviation.operations:
            if (deviation.id, operation) in seen:
                raise DeviationError(
                    f"deviations file {path}: two entries {deviation.id} hold for {operation} in "
                    f"version {version or 'unknown'}: give one of them another id or other versions"
                )
            seen.add((deviation.id, operation))
    return tuple(known)


def known(deviations: Iterable[Deviation], case: Case, failure: Failure) -> Deviation | None:
    """The first deviation that explains the failure of the case (DeviationError)."""
    return next((d for d in deviations if _explains(d, case, failure)), None)


def explain(
    deviations: tuple[Deviation, ...], case: Case, failures: tuple[Failure, ...]
) -> Explained:
    """Which of the failures of one case are known (DeviationError).

    What a kernel sees follows from any other mistake: where all others are known, an
    objection of the consumer is explained by the first of them that does not limit its
    oracles to others.
    """
    if not deviations or not failures:
        return Explained(failures, ())
    pairs = [(known(deviations, case, failure), failure) for failure in failures]
    unknown = [failure for deviation, failure in pairs if deviation is None]
    if all(failure.oracle == CONSUMER for failure in unknown):
        causes = [deviation for deviation, _ in pairs if deviation is not None]
        cause = next((d for d in causes if not d.oracles or CONSUMER in d.oracles), None)
        pairs = [(deviation or cause, failure) for deviation, failure in pairs]
    return Explained(
        tuple(failure for deviation, failure in pairs if deviation is None),
        tuple((deviation, failure) for deviation, failure in pairs if deviation is not None),
    )


def _entries(path: str) -> list[tuple[str, Deviation]]:
    """Every entry with the words that say where it stands, checked."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DeviationError(
            f"deviations file {path} cannot be read: {error.strerror}; name another file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeviationError(f"deviations file {path} is not TOML: {error}") from None
    tables = data.pop("deviation", [])
    if data or not isinstance(tables, list):
        odd = ", ".join(data) or "deviation"
        raise DeviationError(
            f"deviations file {path}: {odd} is not expected at the top: write each entry "
            "under a line [[deviation]]"
        )
    return [_entry(path, number, table) for number, table in enumerate(tables, 1)]


def _entry(path: str, number: int, table: Any) -> tuple[str, Deviation]:
    name = table.get("id", "") if isinstance(table, dict) else ""
    where = f"deviations file {path}, entry {number}{f' ({name})' if name else ''}"
    if isinstance(table, dict) and isinstance(table.get("since"), datetime.date):
        table["since"] = table["since"].isoformat()  # TOML has dates of its own
    try:
        deviation = msgspec.convert(table, Deviation)
    except msgspec.ValidationError as error:
        raise DeviationError(f"{where}: {error}") from None
    for problem in _problems(deviation):
        raise DeviationError(f"{where}: {problem}")
    return where, deviation


def _problems(deviation: Deviation) -> Iterator[str]:
    """What is wrong with an entry, in words that say what to do."""
    for name in ("id", "title", "operations", "reference", "when", "versions"):
        if not getattr(deviation, name):
            hint = f', write "{ANY_VERSION}" for any' if name == "versions" else ""
            yield f"{name} is empty{hint}"
    for operation in deviation.operations:
        if operation not in ALL:
            yield f"no operation {operation!r}: `attnproof list` shows all of them"
    for oracle in deviation.oracles:
        if oracle not in ORACLES:
            yield f"no oracle {oracle!r}: expected some of {', '.join(ORACLES)}"
    if deviation.since and not _is_date(deviation.since):
        yield f"since is {deviation.since!r}: expected a day such as 2025-10-01"
    try:
        _compiled(deviation.when)
    except SyntaxError as error:
        yield f"when is no expression: {error.msg}"
    except NameError as error:
        yield f"when uses {error.name!r}, which is not one of {', '.join(_NAMES)} or a function"


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _holds(deviation: Deviation, version: str, where: str) -> bool:
    if deviation.versions == ANY_VERSION:
        return True
    try:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet
        from packaging.version import InvalidVersion, Version
    except ModuleNotFoundError:
        raise DeviationError(f"{where}: versions need the package packaging: install it") from None
    try:
        specifiers = SpecifierSet(deviation.versions)
        if version:
            return specifiers.contains(Version(version), prereleases=True)
    except InvalidSpecifier:
        raise DeviationError(
            f"{where}: versions is {deviation.versions!r}, expected such as '>=0.10,<0.12'"
        ) from None
    except InvalidVersion:
        pass
    raise DeviationError(
        f"{where}: versions is {deviation.versions!r}, but the candidate's version is "
        f"{version or 'unknown'}: write versions = {ANY_VERSION!r}"
    )


def _explains(deviation: Deviation, case: Case, failure: Failure) -> bool:
    if case.operation not in deviation.operations:
        return False
    if deviation.oracles and failure.oracle not in deviation.oracles:
        return False
    if deviation.fields and not any(_matches(name, failure.field) for name in deviation.fields):
        return False
    try:
        return bool(eval(_compiled(deviation.when), _values(case)))
    except Exception as error:
        raise DeviationError(
            f"known deviation {deviation.id}: when raises {type(error).__name__} ({error}) on case "
            f"{case.id} of {case.operation}: make it hold or not hold there"
        ) from None


def _matches(pattern: str, field: str) -> bool:
    """Whether a field has the name; only * is special, as names hold brackets."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), field) is not None


def _values(case: Case) -> dict[str, Any]:
    """The names of an expression: of a case without a batch the lists are empty, numbers 0."""
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


_NAMES = [name for name in _values(Case("")) if name not in (*_FUNCTIONS, "__builtins__")]


@lru_cache(maxsize=1000)
def _compiled(when: str) -> CodeType:
    """The expression, ready to evaluate (SyntaxError, NameError)."""
    tree = ast.parse(when.strip(), mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    arguments = [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(arguments)
    for node in names:
        if node.id not in bound and node.id not in _NAMES and node.id not in _FUNCTIONS:
            raise NameError(node.id, name=node.id)
    return compile(tree, "when", "eval")
