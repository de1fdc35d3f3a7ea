"""Tell which edge cases and faults of an operation find a mistake that nothing else finds.

    python tools/ablation.py --ops A,B --json FILE

Each planted mutation, shipped bug and some mutants of `optimized` are judged on each case alone, in
one process and without poison. A case has a source: a boundary, a fault, a changed feature, altered
values, or a seed of drawn cases. Of two sources that find the same, neither finds it alone: a
cover, chosen greedily, suffices. A mistake that takes too long or ends its process is left out.
Mutants are of host code: they say nothing of a kernel's tiles, nor of checks in `reference/checks`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from attnproof import reference
from attnproof.harness.cases.variation import combined
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import ENGINE, STRICT, Kind
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running import candidates, case_check, loading
from attnproof.harness.running.loading import load, offered_by
from attnproof.harness.running.task import explicit_cases, more_cases
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.strength import catalogue, processes
from attnproof.harness.strength.mutants import judging, planting, queue, reviewed
from attnproof.harness.strength.mutants.mutant import Mutant
from attnproof.harness.strength.mutants.reach import Places, Reach
from attnproof.harness.strength.mutation import Mutation
from attnproof.harness.strength.pairs.catalogue import all_pairs

_EXAMPLES, _OF_A_FEATURE = 36, 4  # cases of a seed, and of a feature, some of which may not fit
_OPTIMIZED = candidates.BUILT_IN[0]
Known = tuple[Case, dict[str, Any]]  # with the trial's fields that no mistake changes


def sourced_cases(operation: Operation) -> list[tuple[str, Case]]:
    """Return source and case of all cases; those of sequences have no variations."""
    faults, sourced = loading.faults_for(operation, _OPTIMIZED), []
    for entry in explicit_cases.explicit_cases(operation, faults, [], []):
        kind = f"fault {entry.case.fault}" if entry.case.fault else f"boundary {entry.source}"
        sourced.append((kind, entry.case))
    if operation.inputs.machine is None:
        sourced += variations(operation)
        every = more_cases.altered(operation, _OPTIMIZED, _EXAMPLES)
        sourced += [("variation altered values", entry.case) for entry in every]
    for seed in (1, 2):
        drawn = judging.draw_only(operation, faults, _EXAMPLES, seed)
        sourced += [(f"drawn {seed}", case) for case in drawn]
    return sourced


def variations(operation: Operation) -> Iterator[tuple[str, Case]]:
    """Yield some cases of each feature, with nothing else changed."""
    random, limits = Random(1), combined.limits_of(operation)
    bases = combined.bases_of(operation.inputs.boundaries())
    features = combined.by_feature(combined.changes_of(operation))
    for feature, changes in features.items():
        for _ in range(_OF_A_FEATURE if bases else 0):
            pair = [random.choice(changes)], random.choice(bases)
            kept, case = combined.apply_all(*pair, case_check.problem_of_variant, limits)
            if kept:
                yield f"variation {feature}", case


def known_cases(operation: Operation, cases: Iterable[Case]) -> Iterator[Known]:
    """Yield the cases that the reference accepts, each once, with its answer."""
    for case in {case.id: case for case in cases}.values():
        trial = Trial(operation, case, None, offered_by(reference, operation), "cpu")
        with suppress(Exception):  # a meaningless case
            _ = trial.fault if case.fault else trial.expected
            names = {"expected", "kept", "fault"} & vars(trial).keys()
            yield case, {name: vars(trial)[name] for name in names}


def kinds_of(operation: Operation, known: Known, module: Any) -> set[Kind]:
    """Return the classes of a module's failures in one case."""
    right = offered_by(reference, operation)
    trial = Trial(operation, known[0], offered_by(module, operation), right, "cpu", poisons=False)
    vars(trial).update(known[1])
    try:
        failures = judge(trial, repeated=False).failures
    except Exception:  # no oracle can read the outputs
        return set()
    return {failure.kind for failure in operation.real_kinds(known[0], failures)}


def passing(operation: Operation, known: list[Known], reach: Reach) -> dict[str, Places]:
    """Return the lines of `optimized` that each case runs, of those that it passes."""
    operation, module = reach.recorded(operation), load(_OPTIMIZED)
    judged = [(k[0].id, kinds_of(operation, k, module), reach.take()) for k in known]
    return {case_id: lines for case_id, kinds, lines in judged if not kinds}


def failing(_: str, mistake: Any, known: list[Known], name: str, seconds: float) -> set[str]:
    """Return the ids of the cases that fail by the mistake; after the seconds the process ends."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    modules, judged = [load(_OPTIMIZED)], STRICT
    if isinstance(mistake, Mutant):
        planting.plant(mistake)
    elif isinstance(mistake, Mutation):
        modules = [mistake.candidate]
    else:  # engines check little of their input: what fails on the right form too is no finding
        modules, judged = [mistake.before, mistake.after][: 1 + mistake.can_alarm], ENGINE
    ids = [
        {k[0].id for k in known if kinds_of(ALL[name], k, module) & judged} for module in modules
    ]
    return ids[0].difference(*ids[1:])


def mistakes_of(
    name: str, known: list[Known], places: dict[str, Places], reach: Reach, mutants: int
) -> Iterator[tuple[str, Any, list[Known]]]:
    """Yield name, mistake and cases of the mistakes of an operation."""
    planted = [(f"mutation {mutation.name}", mutation) for mutation in catalogue.all_mutations()]
    planted += [(f"shipped {pair.id} {n}", pair) for n, pair in enumerate(all_pairs())]
    yield from ((key, mistake, known) for key, mistake in planted if mistake.operation == name)
    prepared = {name: judging.Prepared([], [], places, 0, 0.0, len(known))}
    planned = queue.Queue(load(_OPTIMIZED), _OPTIMIZED, reach, prepared).planned()
    every = [mutant for mutant, _ in planned if reviewed.needs_judging(mutant)]
    for mutant in Random(1).sample(every, min(mutants, len(every))):
        runs = [k for k in known if reach.has_run(places[k[0].id], mutant.file, mutant.lines)]
        yield f"mutant {mutant.id} {mutant.function}: {mutant.before}", mutant, runs


def ablate(name: str, mutants: int, seconds: float) -> dict[str, Any]:
    """Judge the mistakes of an operation; return what its sources find."""
    loading.preload_package(_OPTIMIZED, ALL[name])
    reach, sourced = Reach(planting.root_of(load(_OPTIMIZED))), sourced_cases(ALL[name])
    known = list(known_cases(ALL[name], (case for _, case in sourced)))
    # In another process: what it keeps of earlier calls would hide mistakes in making it.
    ((_, places),) = processes.in_processes(passing, [(ALL[name], known, reach)], 1)
    known = [k for k in known if k[0].id in places]
    work = [(*row, name, seconds) for row in mistakes_of(name, known, places, reach, mutants)]
    finders: dict[str, set[str]] = {}
    for (key, *_), failed in processes.in_processes(failing, work, 1):
        if failed is not None:
            finders[key] = {source for source, case in sourced if case.id in failed}
    sources = list(dict.fromkeys(source for source, case in sourced if case.id in places))
    return summary(finders, sources) | {"mistakes": len(work)}


def summary(finders: dict[str, set[str]], sources: list[str]) -> dict[str, Any]:
    """Return what each source finds in all and alone, and a cover of each kind."""
    sets, kinds = finders.values(), dict.fromkeys(source.split()[0] for source in sources)
    counts = {s: [sum(s in by for by in sets), sum(by == {s} for by in sets)] for s in sources}
    covers = {kind: cover(finders, [s for s in sources if s.startswith(kind)]) for kind in kinds}
    listed = {name: sorted(by) for name, by in finders.items()}
    return {"sources": counts, "covers": covers, "finders": listed}


def cover(finders: dict[str, set[str]], sources: list[str]) -> list[str]:
    """Return few of the sources, which find all that all of them find."""
    left, chosen = [by for by in finders.values() if not by.isdisjoint(sources)], list[str]()
    while left:
        chosen.append(max(sources, key=lambda source: sum(source in by for by in left)))
        left = [by for by in left if chosen[-1] not in by]
    return chosen


def report(name: str, result: dict[str, Any]) -> str:
    """Return the lines of an operation: its mistakes, and the sources that find nothing alone."""
    judged, lost = len(result["finders"]), sum(not by for by in result["finders"].values())
    lines = [f"{name}: {judged} of {result['mistakes']} mistakes judged, {lost} not found"]
    for kind, enough in result["covers"].items():
        own = {key: n for key, n in result["sources"].items() if key.startswith(kind)}
        idle = [f"{key.partition(' ')[2]} ({n[0]})" for key, n in own.items() if not n[1]]
        lines.append(f"  {kind}: {len(idle)} of {len(own)} find nothing alone: {', '.join(idle)}")
        lines.append(f"    enough: {', '.join(enough)}")
    return "\n".join(lines)


def main() -> None:
    """Print and write the result of each operation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default=",".join(ALL), help="operations, separated by commas")
    parser.add_argument("--json", type=Path, default=os.devnull, help="file of all finders")
    parser.add_argument("--mutants", type=int, default=40, help="mutants of an operation")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of a mistake")
    options = parser.parse_args()
    if unknown := sorted({*options.ops.split(",")} - ALL.keys()):
        parser.error(f"--ops: no operation {', '.join(unknown)}")
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # compiled code has no syntax tree to change
    warm_up()
    results: dict[str, Any] = {}
    for name in options.ops.split(","):
        results[name] = ablate(name, options.mutants, options.seconds)
        print(report(name, results[name]), flush=True)
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
