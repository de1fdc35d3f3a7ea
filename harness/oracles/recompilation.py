"""Oracle 10, cost, part 2: an engine step of a model that has run compiles no kernel again.

Bug classes: an integer that Triton specialises because it is 1 or divisible by 16, the start of
a slice, a count of the batch as a compile-time constant (vllm#45601, vllm#48809). A server stands
still for a second or two (vllm#43009). Triton's interpreter shows it too: the versions are told
apart by the function with which Triton does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from attnproof.harness.cases.variation.rows import rows_of, with_rows
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.cost import NAME

RECOMPILES = "compiles a kernel in an engine step"
_FIRST_ROWS, _LATER_ROWS = (3, 5, 9, 18, 35), (1, 4, 16, 32)
"""Numbers of rows of the first steps, of which none is a power of two or divisible by 16,
and of later ones."""
FIRST_STEPS = len(_FIRST_ROWS)
_MOST_TOKENS = 40
"""Most query tokens of the row that is repeated."""


class Argument(msgspec.Struct, frozen=True, array_like=True):
    """An argument of a launch."""

    specialised: str
    """Type of the argument, and the alignment or value for which the kernel is compiled."""
    value: str


class Version(msgspec.Struct, frozen=True, array_like=True):
    """The first launch of a version of a kernel."""

    step: int
    kernel: str
    arguments: dict[str, Argument]
    number: int = 0
    """Number of the kernel: two forms of one function are two kernels."""

    @property
    def key(self) -> tuple[int | str, ...]:
        """Number of the kernel and specialisation of each argument, equal for one version."""
        return self.number, *(each.specialised for each in self.arguments.values())


def engine_steps(
    operation: Operation, case: Case, problem: Callable[[Case], str]
) -> tuple[Case, ...]:
    """Return steps of one model, which repeat the longest row of the case, or none.

    The first `FIRST_STEPS` are those after which an engine is expected to compile nothing. They
    have equal block tables. A class is left out, whose cases take the sizes of buffers from the
    batch. `problem` returns why a case cannot be run, "" if it can.
    """
    if case.batch is None or not case.num_requests or isinstance(operation.call, ClassCall):
        return ()
    rows = rows_of(case.batch)
    longest = max(range(len(rows)), key=lambda row: sum(rows[row]))
    if case.fault or case.batch.no_slots or rows[longest][0] > _MOST_TOKENS:
        return ()
    counts = (*_FIRST_ROWS, *_LATER_ROWS)
    steps = [with_rows(case, [rows[longest]] * count, [longest] * count) for count in counts]
    cases = tuple(step for step in steps if step is not None)
    runnable = not any(problem(step) or operation.why_unreal(step) for step in cases)
    return cases if len(cases) == len(steps) and runnable else ()


def judge(versions: Sequence[Version]) -> Iterator[Failure]:
    """Yield a failure for each kernel that a later step compiles again."""
    judged: set[str] = set()
    for version in versions:
        if version.step < FIRST_STEPS or version.kernel in judged:
            continue
        changes = min(
            (
                list(_changes(earlier, version))
                for earlier in versions
                if earlier.number == version.number and earlier.step < FIRST_STEPS
            ),
            key=len,
            default=[],
        )
        if changes:
            judged.add(version.kernel)
            texts = [f"{name} is {new.value}, not {old.value}" for name, old, new in changes]
            yield Failure(
                oracle=NAME,
                field=version.kernel,
                diagnosis=RECOMPILES,
                message=f"{version.kernel} compiles again after {FIRST_STEPS} steps of a model: "
                f"{', '.join(texts)}",
                expected="the versions of the first steps",
                got=", ".join(f"{name}: {new.specialised}" for name, _, new in changes),
            )


def _changes(earlier: Version, later: Version) -> Iterator[tuple[str, Argument, Argument]]:
    """Yield the arguments for which Triton compiles, but for strides and sizes of tiles.

    An engine's buffers have one size, those of a case the size of its batch; a tile is a power of
    two, of which an engine can compile each before it serves.
    """
    for name, new in later.arguments.items():
        old = earlier.arguments.get(name, Argument("", "absent"))
        if old.specialised == new.specialised or "stride" in name.lower():
            continue
        constant = old.specialised.startswith("constexpr")
        if not (constant and _is_tile(old.value) and _is_tile(new.value)):
            yield name, old, new


def _is_tile(value: str) -> bool:
    return value.isdecimal() and int(value).bit_count() == 1
