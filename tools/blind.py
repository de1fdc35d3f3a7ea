"""Measure how many wrong backends of a folder one default run finds.

    python tools/blind.py FOLDER [--seed 1] [--jobs 2] [-- OPTIONS OF VERIFY]

Each `*.py` of the folder is a backend with one mistake; its docstring begins with the operation
and the mistake ("build_slot_mapping: ..."). Each is verified by `attnproof verify --candidate
FILE`: all operations that it offers, sequences of its classes too. Prints a row of Markdown for
each, then the rates. *Found* is a finding; *advice*
alone fails no candidate, so such mistakes are no part of the share, and advice on malformed input
is none; *open* has no verdict. Exit code 1 unless all are found or advice.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from attnproof.harness.escaping import markdown_text
from attnproof.harness.model.verdict import ERRORS
from attnproof.harness.running.errors import INFRASTRUCTURE, USAGE


class Mistake(NamedTuple):
    """One wrong backend."""

    file: Path
    operation: str
    text: str

    @staticmethod
    def of(file: Path) -> Mistake:
        """Read the docstring of a file. Raise SystemExit if it names no operation."""
        docstring = ast.get_docstring(ast.parse(file.read_bytes())) or ""
        operation, colon, text = docstring.partition("\n")[0].partition(":")
        if not colon:
            raise SystemExit(f"{file}: the docstring does not begin with an operation and a colon")
        return Mistake(file, operation.strip(), text.strip())


class Judgement(NamedTuple):
    """Result of the run on one wrong backend."""

    result: str
    """`found`, `advice`, `missed` or `open`."""
    headings: tuple[str, ...]
    seconds: float


def judge(mistake: Mistake, options: list[str]) -> Judgement:
    """Verify one backend in a process. Raise SystemExit if the run is refused."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--candidate", str(mistake.file), "--out", folder]
        command = [sys.executable, "-m", "attnproof.harness.cli", "verify", "--json", *words]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode in (USAGE, INFRASTRUCTURE):
        raise SystemExit(f"{mistake.file}: {done.stderr.strip().splitlines()[-1]}")
    run = json.loads(done.stdout)
    # A backend without checks accepts malformed input, whatever its mistake is.
    advice = [finding for finding in run["advice"] if finding["oracle"] != ERRORS]
    for result, findings in (("found", run["findings"]), ("advice", advice)):
        if findings:
            headings = tuple(dict.fromkeys(finding["diagnosis"] for finding in findings))
            return Judgement(result, headings, run["seconds"])
    return Judgement("missed" if run["verdict"] == "PASS" else "open", (), run["seconds"])


def table(mistakes: list[Mistake], judgements: Iterator[Judgement]) -> Counter[str]:
    """Print rows as the runs end; return the number of backends by result."""
    print("| backend | operation | mistake | result | headings | s |\n|---|---|---|---|---|---|")
    count: Counter[str] = Counter()
    for mistake, seen in zip(mistakes, judgements, strict=True):
        count[seen.result] += 1
        cells = (mistake.file.stem, mistake.operation, mistake.text, seen.result)
        row = (*cells, "; ".join(seen.headings), f"{seen.seconds:.0f}")
        print(f"| {' | '.join(map(markdown_text, row))} |", flush=True)
    return count


def main(arguments: list[str]) -> int:
    """Judge the folder; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    chosen, further = parser.parse_known_args(arguments)
    options = ["--seed", str(chosen.seed), "--jobs", "1", *(o for o in further if o != "--")]
    mistakes = [Mistake.of(file) for file in sorted(chosen.folder.glob("*.py"))]
    if not mistakes:
        raise SystemExit(f"{chosen.folder} has no *.py")
    with ThreadPoolExecutor(chosen.jobs) as pool:
        count = table(mistakes, pool.map(lambda mistake: judge(mistake, options), mistakes))
    judged = len(mistakes) - count["advice"]
    share = f"{count['found'] / judged:.0%}" if judged else "no share"
    numbers = ", ".join(f"{count[name]} {name}" for name in ("found", "advice", "missed", "open"))
    print(f"\n{len(mistakes)} backends: {numbers}; found of those that are no advice: {share}")
    return 1 if count["missed"] or count["open"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
