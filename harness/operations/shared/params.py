"""Types of the parameters of a case, with the ranges that a case file may have."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_STEPS = 1000
"""Maximum number of steps of a sequence."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""Number of things, or the index of one."""
Counts = Annotated[list[Count], msgspec.Meta(max_length=MOST_STEPS)]


class Step(msgspec.Struct, forbid_unknown_fields=True, tag_field="do"):
    """Step of a sequence; its name is the value of "do"."""
