"""Containment of the recorder's own errors, which never reach the engine."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")


class Contained:
    """Base of classes that work within an engine's calls."""

    active = True
    """False after an error, and after a limit."""

    def stop(self, reason: str) -> None:
        """Stop recording, and end the file."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Stop recording because of an error, and say so once."""
        if not self.active:
            return
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        print(
            f"attnproof record: stopped, the engine goes on: {reason}", file=sys.stderr, flush=True
        )
        self.stop(type(error).__name__)


_Self = TypeVar("_Self", bound=Contained)


def contained(
    method: Callable[Concatenate[_Self, _Arguments], None],
) -> Callable[Concatenate[_Self, _Arguments], None]:
    """Return the method; an error of it ends the recording, and does not reach the engine."""

    def contained(self: _Self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
        if not self.active:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # whatever it is, the engine must not see it
            self.fail(error)

    return functools.update_wrapper(contained, method)  # type: ignore[return-value]
