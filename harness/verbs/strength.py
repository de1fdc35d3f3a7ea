"""`attnproof strength`: recall on bugs that shipped, and false alarms on their corrections."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import msgspec
from rich.table import Table

from attnproof.harness.model.text import near_hint
from attnproof.harness.running.errors import MISMATCH, VERIFIED, UsageError
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.strength.pairs.catalogue import all_pairs
from attnproof.harness.strength.recall import Sighting, look, plan_sides
from attnproof.harness.verbs.checks import check_depth, check_out, check_seed
from attnproof.harness.verbs.depth import depth_named
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import StrengthOptions
from attnproof.harness.verbs.screen import Screen
from attnproof.harness.verbs.selection import pick_steps

_PIPED_COLUMNS = 200
"""Width of the table without a terminal: a thread stays on one line."""


def measure(options: StrengthOptions) -> int:
    """Verify the pairs and print a line for each; return 1 for a miss or a false alarm."""
    numbers = _picked(options.pairs)
    check_depth(options.depth)
    check_seed(options.seed)
    check_out(options.out)
    if options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds}: expected 1 or more")
    if options.jobs < 0:
        raise UsageError(f"--jobs {options.jobs}: expected 0 or more")
    seeds = list(range(options.seed, options.seed + options.seeds))
    jobs = options.jobs or len(os.sched_getaffinity(0))
    sides = plan_sides(numbers)
    depth = depth_named(options.depth)
    steps, _ = pick_steps([], depth.steps, options.seed)
    settings = Settings(
        examples_db="",
        examples=depth.examples,
        costly_share=depth.costly_share,
        sparse=depth.sparse,
    )
    seen: list[Sighting] = []
    for sighting in look(sides, seeds, jobs, steps, settings):
        seen.append(sighting)
        if not options.json:
            say(_line(sighting))
    seen.sort(key=lambda sighting: (sighting.side == "after", sighting.pair, sighting.seed))
    encoded = msgspec.json.format(msgspec.json.encode(_record(seen)), indent=2)
    _write(options.out / "strength.json", encoded)
    if options.json:
        say(encoded.decode())
    else:
        screen = Screen()
        if not screen.is_terminal and "COLUMNS" not in os.environ:
            screen.width = _PIPED_COLUMNS
        screen.print(_table(seen))
        say(_summary(seen))
    return MISMATCH if _missed(seen) or _alarms(seen) else VERIFIED


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(f"--out {path.parent} cannot be written: {error.strerror}") from None


def _picked(names: list[str]) -> list[int]:
    """Return the positions of the pairs of these threads or operations. Raise UsageError."""
    pairs = all_pairs()
    if not names:
        return list(range(len(pairs)))
    known = sorted({pair.id for pair in pairs} | {pair.operation for pair in pairs})
    for name in names:
        if name not in known:
            hint = near_hint(name, known).strip() or "`attnproof list` prints the names"
            raise UsageError(f"no pair of the thread or operation {name}; {hint}")
    return [n for n, pair in enumerate(pairs) if pair.id in names or pair.operation in names]


def _missed(seen: list[Sighting]) -> list[Sighting]:
    return [sighting for sighting in seen if sighting.side == "before" and not sighting.findings]


def _alarms(seen: list[Sighting]) -> list[Sighting]:
    return [sighting for sighting in seen if sighting.side == "after" and sighting.findings]


def _line(sighting: Sighting) -> str:
    pair = all_pairs()[sighting.pair]
    what = f"{pair.id} {pair.operation} {sighting.side}, seed {sighting.seed}"
    if sighting.findings:
        verdict = "FOUND" if sighting.side == "before" else "FALSE ALARM"
        return f"{verdict:11} {what}: {sighting.findings[0]} ({sighting.seconds} s)"
    verdict = "MISSED" if sighting.side == "before" else "NO ALARM"
    return f"{verdict:11} {what}: {sighting.cases} cases ({sighting.seconds} s)"


def _table(seen: list[Sighting]) -> Table:
    table = Table(box=None)
    for heading in ("thread", "operation", "then", "found by", "requests", "tokens", "s"):
        table.add_column(heading)
    by_pair: dict[int, list[Sighting]] = defaultdict(list)
    for sighting in seen:
        if sighting.side == "before":
            by_pair[sighting.pair].append(sighting)
    for number, runs in by_pair.items():
        pair, hits = all_pairs()[number], [sighting for sighting in runs if sighting.findings]
        best = min(hits, key=lambda sighting: (sighting.tokens, sighting.requests), default=None)
        oracles = sorted({sighting.oracle for sighting in hits})
        share = f" ({len(hits)} of {len(runs)})" if len(hits) < len(runs) else ""
        table.add_row(
            pair.id,
            pair.operation,
            pair.shown_by,
            (", ".join(oracles) or "not found") + share,
            str(best.requests) if best else "",
            str(best.tokens) if best else "",
            str(max(sighting.seconds for sighting in runs)),
        )
    return table


def _summary(seen: list[Sighting]) -> str:
    before = [sighting for sighting in seen if sighting.side == "before"]
    after = [sighting for sighting in seen if sighting.side == "after"]
    recalled = len(before) - len(_missed(seen))
    share = f" ({recalled / len(before):.0%})" if before else ""
    return (
        f"recall: {recalled} of {len(before)} runs on bugs that shipped{share}; "
        f"false alarms: {len(_alarms(seen))} of {len(after)} runs on correct backends"
    )


def _record(seen: list[Sighting]) -> dict[str, object]:
    """Return pairs and results as JSON has them."""
    pairs = all_pairs()
    return {
        "schema": "attnproof.strength/1",
        "summary": _summary(seen),
        "runs": [
            msgspec.to_builtins(sighting)
            | {
                "thread": pairs[sighting.pair].id,
                "operation": pairs[sighting.pair].operation,
                "mistake": pairs[sighting.pair].mistake,
                "shown by": pairs[sighting.pair].shown_by,
            }
            for sighting in seen
        ],
    }
