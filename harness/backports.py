"""Names of newer Pythons' standard library, for Python 3.10.

Import them from here; everything else of the package runs on 3.10 as it is.
"""

from __future__ import annotations

import sys
from datetime import timezone
from enum import Enum

__all__ = ["UTC", "BaseExceptionGroup", "StrEnum", "current_exception", "tomllib"]

UTC = timezone.utc

if sys.version_info >= (3, 11):
    from builtins import BaseExceptionGroup
    from enum import StrEnum

    import tomllib
else:
    import tomli as tomllib
    from exceptiongroup import BaseExceptionGroup

    class StrEnum(str, Enum):
        """An enumeration of texts; `auto()` is the member's name in lower case."""

        __str__ = str.__str__

        @staticmethod
        def _generate_next_value_(
            name: str, _start: int, _count: int, _last_values: list[object]
        ) -> str:
            return name.lower()


def current_exception() -> BaseException | None:
    """Return the exception that is being handled, None without one."""
    return sys.exc_info()[1]
