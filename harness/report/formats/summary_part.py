"""The base of the objects in summary.json."""

from __future__ import annotations

from typing import Any

import msgspec
from typing_extensions import Self


class SummaryPart(msgspec.Struct, kw_only=True):
    """An object in summary.json."""

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """Return the object with the values `others`, and the attributes of `source`."""
        names = [name for name in cls.__struct_fields__ if name not in others]
        return cls(**{name: getattr(source, name) for name in names}, **others)
