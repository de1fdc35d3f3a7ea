"""The operations of SPEC.md, in folders by family; `ALL` has them by name.

A module with a tuple `OPERATIONS` is found by its place in this folder and needs no entry.
"""

from importlib import import_module
from pkgutil import walk_packages

from attnproof.harness.model.operation import Operation

_FOUND: list[Operation] = [
    operation
    for module in walk_packages(__path__, f"{__name__}.")
    for operation in getattr(import_module(module.name), "OPERATIONS", ())
]
ALL: dict[str, Operation] = {
    operation.name: operation
    for operation in sorted(_FOUND, key=lambda operation: int(operation.section))
}
