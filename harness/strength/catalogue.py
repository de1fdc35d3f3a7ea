"""The catalogue of mutations: every `Mutation` of the modules and tables in `mutations`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from attnproof.harness.strength import mutations
from attnproof.harness.strength.mutation import Mutation
from attnproof.harness.strength.text_mutations import read_mutations


def all_mutations() -> list[Mutation]:
    """Return every mutation, those of modules first, by file and in the order of its source."""
    names = [f"{mutations.__name__}.{info.name}" for info in iter_modules(mutations.__path__)]
    values = [value for name in names for value in vars(import_module(name)).values()]
    planted = [value for value in values if isinstance(value, Mutation)]
    tables = sorted(Path(mutations.__path__[0]).glob("*.toml"))
    return planted + [mutation for path in tables for mutation in read_mutations(path)]


def find(name: str) -> list[Mutation]:
    """Return the mutations with this id or name; several may repeat one known bug."""
    return [mutation for mutation in all_mutations() if name in (mutation.id, mutation.name)]


def __getattr__(name: str) -> Mutation:
    """Return the mutation whose name this is, with underscores: a worker imports its candidate."""
    named = [] if name.startswith("__") else find(name.replace("_", " "))
    if len(named) != 1:
        raise AttributeError(name)
    return named[0]
