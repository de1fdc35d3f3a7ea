"""No tests: a pool without Ray, which answers orders at once from a table of root causes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from hypothesis.database import DirectoryBasedExampleDatabase

from attnproof.harness.campaign.ledger import SCHEMA
from attnproof.harness.campaign.pool import Ended
from attnproof.harness.campaign.records import Answer, Begun, Order, Pair
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, Sourced, decode, encode
from attnproof.harness.model.run import Evidence, Finding, OperationResult
from attnproof.harness.model.verdict import Failure
from attnproof.harness.running.task.root_causes import RootCause
from attnproof.harness.running.task.saved_failures import key_of
from attnproof.harness.running.task.task import Outcome

CANDIDATE = Candidate("mine", "/mine.py")
NAMES = ("build_slot_mapping", "split_decodes_and_prefills")
PAIRS = tuple(Pair(name, CANDIDATE.name) for name in NAMES)


BEGUN = Begun(schema=SCHEMA, seed=1, started="2026-01-01T00:00:00+00:00", options={})


def case_of(operation: str, field: str, size: int) -> Case:
    """Return a case that names the wrong field, and how large it is."""
    return Case(operation, None, {"wrong": field, "size": size})


def root_cause_of(case: Case) -> RootCause:
    failure = Failure(oracle="equality", field=case.params["wrong"], diagnosis="wrong", message="")
    sourced = Sourced(case, "fuzz")
    return RootCause(failure, sourced, sourced, frozenset([failure.group]))


def finding_of(found: RootCause, failed: int) -> Finding:
    case = found.smallest.case
    return Finding(
        id=found.failure.field,
        root=found.root,
        operation=case.operation,
        candidate=CANDIDATE.name,
        device="cpu",
        oracle="equality",
        kind=found.failure.kind,
        field=found.failure.field,
        diagnosis="wrong",
        message="it is 1, expected 2",
        expected="2",
        got="1",
        case=case,
        case_id=case.id,
        case_path=f"cases/{case.id}.json",
        origin="fuzz",
        source="",
        requests=case.params["size"],
        tokens=0,
        requests_before=case.params["size"],
        tokens_before=0,
        failed_cases=failed,
        evidence={"fuzz": Evidence(failed, 10)},
        command="",
    )


def answer_of(order: Order, found: list[RootCause], again=(), **changes) -> Answer:
    """Return an answer with these new root causes, and those that the order knows.

    `again` are fields of known root causes that another case shows.
    """
    known = order.settings.known
    seen = [finding_of(one, int(one.failure.field in again)) for one in known]
    seen += [finding_of(one, 1) for one in found]
    fields = {
        "name": order.operation,
        "section": "3",
        "candidate": CANDIDATE.name,
        "device": "cpu",
        "verdict": "FAIL" if seen else "PASS",
        "cases": 10,
        "checks": 100,
        "origins": {"fuzz": 10},
        "features": {"fuzz": {f"{1 << (order.number or 0):x}": 10}},
        "seconds": 1.0,
    }
    result = OperationResult(**(fields | changes))
    return Answer(outcome=Outcome(result, seen, root_causes=found), seconds=1.0)


@dataclass
class InstantPool:
    """Answers each order when it is asked for; `bugs` maps tasks to the fields they find wrong."""

    examples: Path
    bugs: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    flaky: set[str] = field(default_factory=set)
    """Fields that are wrong in no later call."""
    not_offered: set[str] = field(default_factory=set)
    """Operations that the candidate lacks."""
    lost: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    """Number of times that an order is lost."""
    workers: int = 1
    orders: list[Order] = field(default_factory=list)
    waiting: list[Order] = field(default_factory=list)
    most_orders: float = float("inf")
    """Number of answers after which the driver is killed."""

    def size(self) -> int:
        return self.workers

    def submit(self, order: Order) -> None:
        name = order.operation, order.number
        assert name not in [(other.operation, other.number) for other in self.waiting]
        self.orders.append(order)
        self.waiting.append(order)

    def wait(self, seconds: float) -> list[Ended]:
        if self.most_orders <= 0:
            raise SystemExit
        self.most_orders -= 1
        order = self.waiting.pop(0)
        if self.lost[order.operation, order.number] > 0:
            self.lost[order.operation, order.number] -= 1
            return [Ended(order, None, "the worker died")]
        return [Ended(order, self.shrunk(order) if order.number is None else self.task(order))]

    def task(self, order: Order) -> Answer:
        known = {one.root for one in order.settings.known}
        drawn = [
            root_cause_of(case_of(order.operation, name, 100 + order.number))
            for name in self.bugs.get((order.operation, order.number), [])
        ]
        new = [one for one in drawn if one.root not in known]
        for one in new:
            self.save(order.operation, one.smallest.case, order.candidate)
        lacking = {"verdict": "NOT OFFERED"} if order.operation in self.not_offered else {}
        again = [one.failure.field for one in drawn if one.root in known]
        return answer_of(order, new, again, **lacking)

    def shrunk(self, order: Order) -> Answer:
        known = {one.root for one in order.settings.known}
        new: dict[tuple[str, str, str], RootCause] = {}
        passing = []
        for value in order.values:
            case = decode(value)
            if case.params["wrong"] in self.flaky:
                passing.append(value)
                continue
            found = root_cause_of(case_of(order.operation, case.params["wrong"], 1))
            if found.root not in known:
                new[found.root] = found
        for one in new.values():
            self.save(order.operation, one.smallest.case, order.candidate)
        return msgspec.structs.replace(answer_of(order, list(new.values())), passing=tuple(passing))

    def save(self, operation: str, case: Case, candidate: Candidate = CANDIDATE) -> None:
        database = DirectoryBasedExampleDatabase(self.examples)
        database.save(key_of(operation, candidate), encode(case))

    def cancel(self) -> None:
        self.waiting.clear()

    def close(self) -> None:
        pass
