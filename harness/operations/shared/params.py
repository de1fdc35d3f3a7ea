"""Types of the parameters of a case, with the ranges that a case file may have."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Annotated, Any

import msgspec

MOST_STEPS = 1000
"""Maximum number of steps of a sequence."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""Number of things, or the index of one."""
Counts = Annotated[list[Count], msgspec.Meta(max_length=MOST_STEPS)]


def sequence_params(
    steps: dict[str, list[tuple[Any, ...]]], others: list[tuple[Any, ...]] | None = None
) -> type[msgspec.Struct]:
    """Return the type of a sequence's parameters.

    `steps` has the fields of each step by the step's name, `others` the parameters beside the
    steps. A field is its name, its type and, if it may be absent, its default.
    """
    strict: dict[str, Any] = {"forbid_unknown_fields": True, "kw_only": True}
    kinds = [
        msgspec.defstruct(do, fields, tag_field="do", tag=do, **strict)
        for do, fields in steps.items()
    ]
    any_step: Any = reduce(or_, kinds)
    all_steps = Annotated[list[any_step], msgspec.Meta(max_length=MOST_STEPS)]
    return msgspec.defstruct("Params", [*(others or []), ("steps", all_steps)], **strict)
