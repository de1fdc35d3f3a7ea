"""First wrong answer of a manager."""

from __future__ import annotations

from attnproof.harness.model.violation import Violation


class WrongAnswerError(Exception):
    """A wrong answer, after which the state of the cache is not known."""

    def __init__(self, field: str, text: str, detail: str = "") -> None:
        super().__init__(f"{field} {text}")
        self.violation = Violation(field, text, detail)
