"""Judge the installed engine on its edge cases, and print the table release x operation.

    python tools/releases.py vllm docs/vllm.md
    python tools/releases.py sglang docs/sglang.md interpreter
    python tools/releases.py vllm docs/vllm.md auto 'kv_manager,*_build'

judges what the candidate offers on all boundary cases, their faults and the corpus, without
drawing or shrinking; prints the failures that no known deviation explains; and writes the
release's column into the table of the page. A column is data: it is kept when another release is
judged, and so are its rows of other operations than the named ones. Exit code 1 if a failure is
not explained.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import msgspec

from attnproof.harness.cases.variation.altered_calls import fault_of
from attnproof.harness.interfaces import INTERFACES
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve, version_of
from attnproof.harness.running.cases import read_corpus
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.loading import faults_for
from attnproof.harness.running.task.deviations import deviations_of, explain
from attnproof.harness.running.task.explicit_cases import explicit_cases
from attnproof.harness.running.task.workers import InvalidCaseError, Worker
from attnproof.harness.running.worker.worker import warm_up

_ROOT = Path(__file__).parents[1]
_HEAD = "| operation |"
_MARKS = {"conforms": "✓", "deviates": "known", "fails": "**new**"}
"""Words of the table, by what the cases of an operation show."""


def _cases(candidate: Candidate, operation: Operation) -> Iterator[Case]:
    """Yield the operation's edge cases as the candidate's interface says them."""
    faults = faults_for(operation, candidate)
    corpus = _ROOT / "tests" / "corpus" / candidate.name.partition("-")[0]
    known = read_corpus(corpus) if corpus.is_dir() else []
    own = [entry for entry in known if entry.case.operation == operation.name]
    for sourced in explicit_cases(operation, faults, [], own, set(), with_boundaries=True):
        case = INTERFACES[candidate.interface].fit(sourced.case)
        if case.fault and not (faults and fault_of(operation, case).applies(case)):
            case = msgspec.structs.replace(case, fault="")
        yield case


def _judge(candidate: Candidate, patterns: list[str]) -> dict[str, str]:
    """Return a key of `_MARKS` for each operation of these names that the candidate offers."""
    warm_up([candidate])
    known = deviations_of(candidate)
    worker = Worker(candidate, ALL, timeout_s=60, memory_bytes=8 << 30)
    shown: dict[str, str] = {}
    for name, operation in ALL.items():
        if name not in worker.offers or not any(fnmatch(name, each) for each in patterns):
            continue
        shown[name] = "conforms"
        unexplained: Counter[str] = Counter()
        judged = 0
        for case in _cases(candidate, operation):
            try:
                explained = explain(known, case, worker.judge(case).failures)
            except InvalidCaseError as error:
                print(f"{name}: a case cannot be run: {error}"[:300], flush=True)
                continue
            judged += 1
            if explained.known:
                shown[name] = "deviates"
            unexplained.update(
                f"{failure.diagnosis}: {failure.message}" for failure in explained.unknown
            )
        if not judged:
            del shown[name]
        for text, times in unexplained.items():
            shown[name] = "fails"
            print(f"{name}, {times} cases: {text}"[:300], flush=True)
    worker.stop()
    return shown


def _rows(text: str) -> dict[str, dict[str, str]]:
    """Return the table of a page by release, then operation; empty without one."""
    lines = re.findall(rf"^{re.escape(_HEAD)}.*(?:\n\|.*)*", text, re.MULTILINE)
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in "".join(lines).splitlines()]
    releases = cells[0][1:] if cells else []
    return {
        release: {row[0].strip("`"): row[at] for row in cells[2:] if row[at]}
        for at, release in enumerate(releases, 1)
    }


def _table(columns: dict[str, dict[str, str]]) -> str:
    releases = sorted(columns, key=lambda release: [int(n) for n in re.findall(r"\d+", release)])
    lines = [f"{_HEAD} {' | '.join(releases)} |", "|---" * (len(releases) + 1) + "|"]
    for name in ALL:
        marks = [columns[release].get(name, "") for release in releases]
        if any(marks):
            lines.append(f"| `{name}` | {' | '.join(marks)} |")
    return "\n".join(lines)


def main(name: str, page: str, device: str = "auto", operations: str = "*") -> int:
    """Judge the installed release on the device and write its column; return the exit code.

    `operations` are names and patterns, separated by commas.

    The table stands behind a comment that names the candidate, and the device if one is given.
    """
    [candidate] = with_interface(resolve([name], device), "")
    release = version_of(candidate).partition("+")[0]
    shown = _judge(candidate, operations.split(","))
    text = Path(page).read_text(encoding="utf-8")
    label = name if device == "auto" else f"{name}, {device}"
    marker = f"<!-- releases of {label} -->\n"
    before, after = text.split(marker)
    columns = _rows(after.partition("<!-- end -->")[0])
    kept = columns.get(release, {}) if operations != "*" else {}
    columns[release] = kept | {operation: _MARKS[word] for operation, word in shown.items()}
    rest = after.partition("<!-- end -->")[2]
    new = f"{before}{marker}\n{_table(columns)}\n\n<!-- end -->{rest}"
    Path(page).write_text(new, encoding="utf-8")
    print(f"{label} {release}: {dict(Counter(shown.values()))}")
    return int("fails" in shown.values())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
