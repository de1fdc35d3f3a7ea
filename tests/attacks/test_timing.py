"""Candidates that attack the clock: a time counts only for a result that exists."""

from __future__ import annotations

from tests.attacks.attack import FAIL, Attack
from tests.attacks.runs import OPERATION, command

LATER = Attack(
    "computes_later",
    FAIL,
    "returned another result while it was timed",
    "return Later(r.shape, r)",
    """
    class Later(torch.Tensor):
        @staticmethod
        def __new__(cls, shape, right):
            made = torch.empty(shape, dtype=right.dtype).as_subclass(cls)
            made.right = right
            return made
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            args = [one.right if isinstance(one, Later) else one for one in args]
            return function(*args, **(kwargs or {}))
    """,
)


def test_a_result_that_is_computed_when_it_is_read_gets_no_time(tmp_path):
    (tmp_path / "computes_later.py").write_text(LATER.source(OPERATION), encoding="utf-8")
    options = ("--against", "reference", "--candidate", "computes_later.py", "--out", "o")
    quick = ("--seconds", "1", "--steps", "0")
    run = command("bench", "--ops", OPERATION, *options, *quick, folder=tmp_path)
    ended = run.end()
    ended.assert_orderly(1)
    assert LATER.words in ended.out
    assert "expected a plain tensor" in ended.out
