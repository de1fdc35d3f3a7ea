"""Settings of `[tool.attnproof]` in pyproject.toml: flag over file over default.

`configured` is the one place where the three meet. This module imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from attnproof.harness.backports import tomllib
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.text import near_hint
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.shipped import is_shipped_list
from attnproof.harness.verbs.messages import complain
from attnproof.harness.verbs.options import (
    BenchOptions,
    CampaignOptions,
    MutantsOptions,
    ReplayOptions,
    VerifyOptions,
)

FILE = "pyproject.toml"
TABLE = "tool.attnproof"
_MOST_BYTES = 1 << 24
"""Maximum size of the file."""

_Options = TypeVar("_Options")


class ConfigError(UsageError):
    """A mistake in `[tool.attnproof]`: one line with file, key and remedy."""


class Setting(NamedTuple):
    """The value of one option, and where it came from."""

    option: str
    """Key in pyproject.toml, or the flag's name for an option that has none."""
    value: Any
    source: str
    """ "flag", "default", or file and key such as "pyproject.toml: contract"."""


class _Key(NamedTuple):
    """A key of the table: the field of the options that it sets, and its type."""

    field: str
    read: Callable[[Any, Path], Any]
    """Function from TOML value and folder of the file to the field's value; raises TypeError."""
    verbs: tuple[type, ...] = (VerifyOptions,)
    """Options that it applies to."""


def _is(value: Any, kind: type, words: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(words)
    return value


def _text(value: Any, _folder: Path) -> str:
    return str(_is(value, str, "a text"))


def _flag(value: Any, _folder: Path) -> bool:
    return bool(_is(value, bool, "true or false"))


def _whole(value: Any, _folder: Path) -> int:
    return int(_is(value, int, "a whole number"))


def _number(value: Any, _folder: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("a number")
    try:
        return float(value)
    except OverflowError:
        raise TypeError("a number of at most 1e308") from None


def _texts(value: Any, _folder: Path) -> list[str]:
    words = "a list of texts"
    return [str(_is(text, str, words)) for text in _is(value, list, words)]


def _commas(value: Any, folder: Path) -> str:
    """Return names with commas between them, of a text or a list."""
    if isinstance(value, list):
        return ",".join(_texts(value, folder))
    return str(_is(value, str, "a text or a list of texts"))


def _path(value: Any, folder: Path) -> Path:
    """Return the path; a relative one is relative to the file, and shown from here."""
    name = _text(value, folder)
    if not name:
        raise TypeError("a path")
    return Path(name if Path(name).is_absolute() else os.path.relpath(folder / name))


def _inner_path(value: Any, folder: Path) -> Path:
    """Return the path, which must lie in the repository: a file from elsewhere names no other."""
    root = _searched(folder)[-1]
    if not (folder / _text(value, folder)).resolve().is_relative_to(root):
        raise TypeError(f"a path in {root}")
    return _path(value, folder)


def _paths(value: Any, folder: Path) -> list[Path]:
    return [_path(text, folder) for text in _texts(value, folder)]


def _candidates(value: Any, folder: Path) -> list[str]:
    """Return names, and paths of files and folders relative to the file."""
    return [_candidate(name, folder) for name in _texts(value, folder)]


def _candidate(name: str, folder: Path) -> str:
    files = (".py", ".json")
    if os.sep not in name and not name.endswith(files):
        return name
    path = str(_path(name, folder))
    return path if os.sep in path or path.endswith(files) else f".{os.sep}{path}"


def _deviations(value: Any, folder: Path) -> list[str]:
    names = [value] if isinstance(value, str) else _texts(value, folder)
    return [name if is_shipped_list(name) else str(_path(name, folder)) for name in names]


_CALLS = (VerifyOptions, BenchOptions, ReplayOptions)
_ALL = (*_CALLS, CampaignOptions, MutantsOptions)
_RUNS = (VerifyOptions, BenchOptions)
_CODE = (*_RUNS, CampaignOptions, MutantsOptions)
"""Options that may take code from the file: a case to replay may lie beside a stranger's."""
KEYS: dict[str, _Key] = {
    "candidates": _Key("candidates", _candidates, _CODE),
    "operations": _Key("definitions", _candidates, _CODE),
    "contract": _Key("contract", _text, _ALL),
    "fail-on": _Key("fail_on", _commas, _ALL),
    "deviations": _Key("deviations", _deviations, (*_CALLS, CampaignOptions)),
    "device": _Key("device", _text, (*_CALLS, CampaignOptions)),
    "interface": _Key("interface", _text, _ALL),
    "timeout": _Key("timeout_s", _number, (*_CALLS, CampaignOptions)),
    "out": _Key("out", _inner_path, _CALLS),
    "ops": _Key("ops", _commas, (*_RUNS, CampaignOptions, MutantsOptions)),
    "traces": _Key("traces", _paths, _RUNS),
    "jobs": _Key("jobs", _whole, _RUNS),
    "memory": _Key("memory_gib", _number, (*_RUNS, CampaignOptions)),
    "corpus": _Key("corpus", _path),
    "recorded": _Key("recorded", _paths, _RUNS),
    "examples": _Key("examples", _whole),
    "steps": _Key("steps", _whole),
    "seconds": _Key("seconds", _number),
    "seed": _Key("seed", _whole),
    "depth": _Key("depth", _text),
    "vary": _Key("vary", _flag),
    "remember": _Key("remember", _flag),
}
"""Keys of the table, in the order in which the documents list them."""


def configured(options: type[_Options], flags: Mapping[str, Any]) -> _Options:
    """Return the options: those of `flags`, then the nearest pyproject.toml, then the defaults.

    `flags` maps fields of the dataclass to values. Name candidates of the file on standard error.
    Raise ConfigError.
    """
    held = _read(options)
    if "candidates" in held and "candidates" not in flags:
        place, names = held["candidates"]
        complain(f"{place}: {', '.join(names)}")
    return options(**{**{name: value for name, (_, value) in held.items()}, **flags})


def settings(options: type[Any], flags: Mapping[str, Any]) -> list[Setting]:
    """Return the value of each option with its source, in the order of the options (ConfigError).

    `flags` maps fields of the dataclass to values.
    """
    held = _read(options)
    keys = {key.field: name for name, key in KEYS.items()}
    listed = []
    for declared in fields(options):
        name = keys.get(declared.name, declared.name.replace("_", "-"))
        if declared.name in flags:
            listed.append(Setting(name, flags[declared.name], "flag"))
        elif declared.name in held:
            place, value = held[declared.name]
            listed.append(Setting(name, value, place))
        else:
            listed.append(Setting(name, _default(declared), "default"))
    return listed


def find_file(start: Path | None = None) -> Path | None:
    """Return the nearest pyproject.toml, from a folder up to the root of its repository.

    `start` is the current folder by default; without a repository no other folder counts.
    """
    paths = (folder / FILE for folder in _searched(start or Path.cwd()))
    return next((path for path in paths if os.path.lexists(path)), None)


def _searched(start: Path) -> list[Path]:
    """Return the folder and those above it up to the root of the repository, which is the last."""
    folders = [start.resolve(), *start.resolve().parents]
    roots = (place for place, folder in enumerate(folders) if os.path.lexists(folder / ".git"))
    return folders[: next(roots, 0) + 1]


def _check_owner(path: Path, shown: str) -> None:
    """Check that the file, and the link to it, belong to the user or to root (ConfigError)."""
    for owner in {path.lstat().st_uid, path.stat().st_uid} - {os.geteuid(), 0}:
        raise ConfigError(
            f"{shown} belongs to user {owner}, and you are {os.geteuid()}: it may name code. "
            "Make the file yours, or run in a folder without it"
        )


def _read(options: type[Any]) -> dict[str, tuple[str, Any]]:
    """Return the fields that the file sets, each with its place and value (ConfigError)."""
    path = find_file()
    if path is None:
        return {}
    shown = os.path.relpath(path)
    kept: dict[str, tuple[str, Any]] = {}
    table = _table(path, shown)
    if table:
        _check_owner(path, shown)
    for name, value in table.items():
        if name not in KEYS:
            hint = near_hint(name, KEYS, 0.5).strip() or f"expected one of {', '.join(KEYS)}"
            raise ConfigError(f"{shown}: [{TABLE}] has no key {name!r}: {hint}")
        key = KEYS[name]
        try:
            read = key.read(value, path.parent)
        except TypeError as error:
            raise ConfigError(
                f"{shown}: {name} of [{TABLE}] is {value!r}, expected {error}"
            ) from None
        if issubclass(options, key.verbs):
            kept[key.field] = (f"{shown}: {name}", read)
    return kept


def _table(path: Path, shown: str) -> dict[str, Any]:
    """Return the table, {} without one (ConfigError)."""
    try:
        data: Any = tomllib.loads(read_regular(path, _MOST_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"{shown} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{shown} is nested too deeply") from None
    except ValueError as error:  # no TOML, no UTF-8, or an integer of too many digits
        raise ConfigError(f"{shown} is not TOML: {error}") from None
    for name in TABLE.split("."):
        data = data.get(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{shown}: {name} of [{TABLE}] is {data!r}, expected a table")
    return dict(data)


def _default(declared: Field[Any]) -> Any:
    if declared.default is not MISSING:
        return declared.default
    return declared.default_factory() if declared.default_factory is not MISSING else None


def setting_lines(listed: list[Setting]) -> Iterator[str]:
    """Yield a line for each setting: name, value, source."""
    shown = [(setting.option, value_text(setting.value), setting.source) for setting in listed]
    widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
    for name, value, source in shown:
        yield f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}"


def value_text(value: Any) -> str:
    """Return a value as text, "-" for nothing."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None or value == "" else str(value)
