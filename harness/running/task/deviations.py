"""Known deviations: read their TOML file, and find the failures that they explain.

docs/deviations.md describes the file.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from attnproof.harness.backports import tomllib
from attnproof.harness.model.candidate import Candidate, device_type
from attnproof.harness.model.case import Case
from attnproof.harness.model.deviation import ANY_OPERATION, Deviation
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.text import near_hint
from attnproof.harness.model.verdict import CONSUMER, ORACLES, STRICT, Failure, Kind
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.engines import engine_of
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.shipped import is_shipped_list, shipped_list, shipped_names
from attnproof.harness.running.task.conditions import NAMES, ConditionError, compiled, holds

ANY_VERSION = "*"
_MOST_BYTES = 1 << 24
"""Maximum size of a file of known deviations."""


class DeviationError(UsageError):
    """A mistake in a file of known deviations: one line with file, entry and remedy."""


class Explained(NamedTuple):
    """The failures of one case: unknown ones, and those that do not fail the candidate."""

    unknown: tuple[Failure, ...] = ()
    """Failures that no known deviation explains."""
    known: tuple[tuple[Deviation, Failure], ...] = ()
    advice: tuple[Failure, ...] = ()
    """Failures of classes that the contract does not judge."""


def deviations_of(candidate: Candidate) -> tuple[Deviation, ...]:
    """Return the known deviations of the candidate's version and lane (DeviationError)."""
    known: list[Deviation] = []
    for name in candidate.deviations:
        shipped = is_shipped_list(name)
        path, version = shipped_list(name) if shipped else (name, _release_of(candidate))
        known += load(path, version)
    _check_ids(known, ", ".join(candidate.deviations), version_of(candidate))
    return tuple(
        d
        for d in known
        if not d.lanes or {candidate.lane, device_type(candidate.lane)} & set(d.lanes)
    )


def _release_of(candidate: Candidate) -> str:
    """Return the candidate's version; an engine's is the tried release that is nearest."""
    engine = engine_of(candidate.target)
    return engine.release if engine else version_of(candidate)


def with_deviations(candidates: list[Candidate], names: Iterable[str]) -> list[Candidate]:
    """Return the candidates; those without known deviations of their own get those of `names`.

    A name is that of a file, or of a shipped list such as "vllm:0.11". Reads all files, so that
    a mistake is reported before a run begins (DeviationError; UsageError for an unknown list).
    """
    lists = tuple(dict.fromkeys(names))
    candidates = [
        c if c.deviations else msgspec.structs.replace(c, deviations=lists) for c in candidates
    ]
    for candidate in candidates:
        deviations_of(candidate)
    return candidates


def load(path: str, version: str) -> tuple[Deviation, ...]:
    """Return the deviations of a version of the candidate's package (DeviationError).

    `version` is "" if it is unknown; every entry must then hold for any version.
    """
    entries = entries_of(path)
    known = [deviation for where, deviation in entries if is_for(deviation, version, where)]
    _check_ids(known, path, version)
    return tuple(known)


def _check_ids(known: list[Deviation], files: str, version: str) -> None:
    """Raise DeviationError if two entries of one id hold for one operation."""
    earlier: defaultdict[str, list[Deviation]] = defaultdict(list)
    for deviation in known:
        for other in earlier[deviation.id]:
            shared = [name for name in deviation.operations if other.covers(name)]
            shared += [name for name in other.operations if deviation.covers(name)]
            if shared:
                raise DeviationError(
                    f"deviations file {files}: two entries {deviation.id} hold for {shared[0]} in "
                    f"version {version or 'unknown'}: give one of them another id or other versions"
                )
        earlier[deviation.id].append(deviation)


def known(deviations: Iterable[Deviation], case: Case, failure: Failure) -> Deviation | None:
    """Return the first deviation that explains the failure of the case (DeviationError)."""
    return next((d for d in deviations if explains(d, case, failure)), None)


def explain(
    deviations: tuple[Deviation, ...],
    case: Case,
    failures: tuple[Failure, ...],
    judged: frozenset[Kind] = STRICT,
) -> Explained:
    """Divide the failures of one case (DeviationError); `judged` are the classes that count.

    A failure of the consumer follows from any other mistake. If all other failures are known,
    it is explained by the first of their deviations whose `oracles` allow the consumer.
    """
    pairs = [(known(deviations, case, failure), failure) for failure in failures]
    unknown = [failure for deviation, failure in pairs if deviation is None]
    if all(failure.oracle == CONSUMER for failure in unknown):
        causes = [deviation for deviation, _ in pairs if deviation is not None]
        cause = next((d for d in causes if not d.oracles or CONSUMER in d.oracles), None)
        pairs = [(deviation or cause, failure) for deviation, failure in pairs]
    unknown = [failure for deviation, failure in pairs if deviation is None]
    return Explained(
        tuple(failure for failure in unknown if failure.kind in judged),
        tuple((deviation, failure) for deviation, failure in pairs if deviation is not None),
        tuple(failure for failure in unknown if failure.kind not in judged),
    )


def entries_of(path: str) -> list[tuple[str, Deviation]]:
    """Return the checked entries (DeviationError), each with its place in the file for messages."""
    try:
        data = tomllib.loads(read_regular(path, _MOST_BYTES).decode())
    except OSError as error:
        hint = (":" in path and near_hint(path, shipped_names())) or "name another file"
        raise DeviationError(
            f"deviations file {path} cannot be read: {error.strerror}; {hint.strip()}"
        ) from None
    except RecursionError:
        raise DeviationError(f"deviations file {path} is nested too deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, or an integer of too many digits
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
        table["since"] = table["since"].isoformat()  # TOML parses an unquoted date
    try:
        deviation = msgspec.convert(table, Deviation)
    except msgspec.ValidationError as error:
        raise DeviationError(f"{where}: {error}") from None
    for problem in _problems(deviation):
        raise DeviationError(f"{where}: {problem}")
    return where, deviation


def _problems(deviation: Deviation) -> Iterator[str]:
    """Yield the mistakes of an entry, each with a remedy."""
    for name in ("id", "title", "operations", "reference", "when", "versions"):
        if not getattr(deviation, name):
            hint = f', write "{ANY_VERSION}" for any' if name == "versions" else ""
            yield f"{name} is empty{hint}"
    for operation in deviation.operations:
        if operation not in ALL and operation != ANY_OPERATION:
            yield f"no operation {operation!r}: `attnproof list` shows all of them"
    for oracle in deviation.oracles:
        if oracle not in ORACLES:
            yield f"no oracle {oracle!r}: expected some of {', '.join(ORACLES)}"
    if deviation.since and not _is_date(deviation.since):
        yield f"since is {deviation.since!r}: expected a day such as 2025-10-01"
    try:
        compiled(deviation.when)
    except SyntaxError as error:
        yield f"when is no expression: {error.msg}"
    except (MemoryError, RecursionError):
        yield "when is nested too deeply"
    except ModuleNotFoundError as error:
        yield f"when needs the package {error.name}: install it"
    except NameError as error:
        yield f"when uses {error.name!r}, which is not one of {', '.join(NAMES)} or a function"


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_for(deviation: Deviation, version: str, where: str) -> bool:
    """True if the deviation holds for the version (DeviationError, which begins with `where`)."""
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


def explains(deviation: Deviation, case: Case, failure: Failure) -> bool:
    """True if the deviation explains the failure of the case (DeviationError)."""
    if not deviation.covers(case.operation):
        return False
    if deviation.oracles and failure.oracle not in deviation.oracles:
        return False
    said = (deviation.fields, failure.field), (deviation.diagnoses, failure.diagnosis)
    if any(patterns and not _matches(patterns, text) for patterns, text in said):
        return False
    try:
        return holds(deviation.when, case)
    except ConditionError as error:
        raise DeviationError(
            f"known deviation {deviation.id}: when {error} on case {case.id} "
            f"of {case.operation}: make it hold or not hold there"
        ) from None


def _matches(patterns: tuple[str, ...], text: str) -> bool:
    """True if a pattern matches; only * is special, because field names hold brackets."""
    return any(_match(pattern.split("*"), text) for pattern in patterns)


def _match(parts: list[str], text: str) -> bool:
    """True if the text consists of the parts, in order, with anything between two of them."""
    # A regular expression of many `.*` takes time that grows with a power of their number.
    first, *others = parts
    if not others:
        return text == first
    last = others.pop()
    if not text.startswith(first) or not text.endswith(last):
        return False
    place, end = len(first), len(text) - len(last)
    for part in others:
        index = text.find(part, place, end)
        if index < 0:
            return False
        place = index + len(part)
    return place <= end
