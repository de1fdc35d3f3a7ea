"""The catalogue of mutations: every `Mutation` of the modules in `mutations`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from attnproof.harness.strength import mutations
from attnproof.harness.strength.mutation import Mutation


def all_mutations() -> Iterator[Mutation]:
    """Yield every mutation, by module and in the order of its source."""
    for info in iter_modules(mutations.__path__):
        module = import_module(f"{mutations.__name__}.{info.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Mutation))


def find(name: str) -> list[Mutation]:
    """Return the mutations with this id or name; several may repeat one known bug."""
    return [mutation for mutation in all_mutations() if name in (mutation.id, mutation.name)]
