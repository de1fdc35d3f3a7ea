"""The operations of SPEC.md in folders by family, and `ALL` of them by name.

A module in this folder that defines a tuple `OPERATIONS` is found without an entry here.
"""

from importlib import import_module
from pkgutil import walk_packages

from attnproof.harness.model.operation import Operation

_OPERATIONS: list[Operation] = [
    operation
    for module in walk_packages(__path__, f"{__name__}.")
    for operation in getattr(import_module(module.name), "OPERATIONS", ())
]
ALL: dict[str, Operation] = {
    operation.name: operation
    for operation in sorted(_OPERATIONS, key=lambda operation: int(operation.section))
}
