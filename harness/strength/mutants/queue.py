"""Plan the mutants of a candidate, and choose the cases that judge each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, decode
from attnproof.harness.strength.mutants.judging import Prepared, Round
from attnproof.harness.strength.mutants.mutant import Mutant, Result
from attnproof.harness.strength.mutants.operators import mutants
from attnproof.harness.strength.mutants.planting import called_functions, find_functions
from attnproof.harness.strength.mutants.reach import Reach
from attnproof.harness.strength.mutants.reviewed import not_judged

_MOST_OPERATIONS = 5
"""Maximum number of operations that judge one mutant."""
Planned = tuple[Mutant, list[str]]
"""A mutant, and the operations that run its function."""


class Queue:
    """Cases of each operation, in an order that is likely to kill mutants soon."""

    def __init__(
        self, module: Any, candidate: Candidate, reach: Reach, prepared: dict[str, Prepared]
    ) -> None:
        self._module = module
        self._candidate = candidate
        self._reach = reach
        self._places = {name: entry.places for name, entry in prepared.items()}
        self._cases = {name: [*map(decode, entry.cases)] for name, entry in prepared.items()}
        self._deep = {name: [*map(decode, entry.deep)] for name, entry in prepared.items()}
        self._case_s = {name: entry.case_s for name, entry in prepared.items()}
        self._stems: dict[str, str] = {}
        """Name of the file of each operation's function, without its suffix."""
        self._killers: dict[str, list[str]] = defaultdict(list)
        """Ids of the cases that killed a mutant of an operation, the last one first."""

    def planned(self) -> list[Planned]:
        """Return the mutants of all functions that run."""
        by_id: dict[str, Planned] = {}
        for name, places in self._places.items():
            every = np.unique(np.concatenate([*places.values(), np.empty(0, np.int64)]))
            lines = self._reach.by_file(every)
            for file, function, tree in called_functions(lines):
                if function.partition(".")[0] == name:
                    self._stems[name] = Path(file).stem
                for mutant in mutants(file, function, tree, lines[file]):
                    by_id.setdefault(mutant.id, (mutant, []))[1].append(name)
        planned = [plan for plan in by_id.values() if not not_judged(plan[0])]
        find_functions(self._module, {mutant.file for mutant, _ in planned})
        return planned

    def arguments(self, planned: Iterable[Planned], budget_s: float) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of `judge` for each mutant, which is given `budget_s` seconds."""
        for mutant, names in planned:
            rounds = [self._round(mutant, name) for name in names]
            rounds.sort(key=partial(self._rank, Path(mutant.file).stem))
            yield mutant, self._module, self._candidate, budget_s, rounds[:_MOST_OPERATIONS]

    def _rank(self, stem: str, r: Round) -> tuple[bool, bool, float]:
        """Return what to sort by: operations of the same file, then those with malformed cases.

        Among them come those with the fastest cases.
        """
        malformed = any(case.fault for case in r.cases)
        return self._stems.get(r.operation) != stem, not malformed, self._case_s[r.operation]

    def _round(self, mutant: Mutant, name: str) -> Round:
        """Return the cases of an operation that run the changed statement.

        Valid and malformed cases take turns, as an operation has dozens of faults. The malformed
        ones that run the fewest lines come first: they are refused soon after it.
        """
        places = self._places[name]
        ids = {
            case_id
            for case_id, run in places.items()
            if self._reach.has_run(run, mutant.file, mutant.lines)
        }
        by_id = {case.id: case for case in self._cases[name] if case.id in ids}
        first: list[Case] = [by_id.pop(killer) for killer in self._killers[name] if killer in by_id]
        good = [case for case in by_id.values() if not case.fault]
        malformed = [case for case in by_id.values() if case.fault]
        malformed.sort(key=lambda case: len(places[case.id]))
        deep = [case for case in self._deep[name] if case.id in ids]
        return Round(name, [*first, *_alternated(good, malformed)], deep)

    def learn(self, result: Result) -> None:
        """Let the case that killed a mutant come first from now on."""
        if result.case:
            killers = self._killers[result.operation]
            if result.case in killers:
                killers.remove(result.case)
            killers.insert(0, result.case)


def _alternated(good: list[Case], malformed: list[Case]) -> Iterator[Case]:
    """Yield the cases of both lists in turns, then those that are left."""
    for pair in zip_longest(good, malformed):
        yield from (case for case in pair if case is not None)
