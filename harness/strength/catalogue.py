"""The catalogue of mutations: every `Mutation` of the modules in `mutations`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from attnproof.harness.strength import mutations
from attnproof.harness.strength.mutation import Mutation


def all_mutations() -> list[Mutation]:
    """Return every mutation, by module and in the order of its source."""
    names = [f"{mutations.__name__}.{info.name}" for info in iter_modules(mutations.__path__)]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return [value for value in values if isinstance(value, Mutation)]


def find(name: str) -> list[Mutation]:
    """Return the mutations with this id or name; several may repeat one known bug."""
    return [mutation for mutation in all_mutations() if name in (mutation.id, mutation.name)]
