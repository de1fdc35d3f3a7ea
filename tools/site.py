"""Gather the pages of the site in `build/pages`, for `mkdocs build`; `tox run -e docs` runs both.

    python tools/site.py [--no-samples]

The folder has the layout of the repository, so that links between pages are the same in both. It
holds the documents, the files that they link to, one page for each operation, made from the code,
and sample reports, made by the commands that are named on their page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attnproof.harness.backports import tomllib
from attnproof.harness.operations import ALL
from attnproof.harness.report.catalogue import Entry, entry_of
from attnproof.harness.strength.catalogue import all_mutations

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"
OPERATIONS = Path("docs/operations")
_DOCUMENTS = ("*.md", "docs/*.md", "docs/figures/*", "docs/reports/*.md", "tests/README.md")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)|<img[^>]* src=\"([^\":]+)\"")
_KNOWN = """[[deviation]]
id = "slice-progress"
title = "computed tokens of a continued request are not advanced"
operations = ["_make_metadata_with_slice"]
versions = "*"
reference = "the example of a report with a known deviation"
when = "not fault"
fields = ["*num_computed_tokens_cpu"]
"""


class Sample(NamedTuple):
    """A sample report and the command that makes it."""

    folder: str
    title: str
    arguments: tuple[str, ...]
    exit_code: int


_OPS = ("--ops", "build_slot_mapping,_make_metadata_with_slice", "--seed", "1")
_SLICE = ("--ops", "_make_metadata_with_slice", "--seed", "1")
_WRONG = ("--candidate", "examples/wrong_backend.py")
SAMPLES = (
    Sample("pass", "PASS", ("verify", "--candidate", "examples/correct_backend.py", *_OPS), 0),
    Sample("fail", "FAIL", ("verify", *_WRONG, *_OPS), 1),
    Sample(
        "deviates",
        "DEVIATES",
        ("verify", *_WRONG, *_SLICE, "--deviations", "known.toml"),
        0,
    ),
    Sample(
        "bench",
        "timings",
        ("bench", "--candidate", "examples/correct_backend.py", *_OPS, "--seconds", "0.2"),
        0,
    ),
)


def gather() -> None:
    """Copy the documents and the files that they link to."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for pattern in _DOCUMENTS:
        for path in sorted(ROOT.glob(pattern)):
            _copy(path)
    for page in sorted(PAGES.rglob("*.md")):
        for target in _targets(page.read_text(encoding="utf-8")):
            path = (ROOT / page.relative_to(PAGES).parent / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT) and ".md" not in path.suffix:
                _copy(path)


def _targets(text: str) -> list[str]:
    return [first or second for first, second in _LINK.findall(text)]


def _copy(path: Path) -> None:
    target = PAGES / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def _write(page: str, text: str) -> None:
    target = PAGES / page
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def write_operations() -> list[str]:
    """Write one page an operation and their index; return the names of the operations."""
    folder = PAGES / OPERATIONS
    folder.mkdir(parents=True, exist_ok=True)
    entries = sorted(map(entry_of, ALL.values()), key=lambda e: _order(e.operation.section))
    bugs, sections, deviations = _known_bugs(), _sections(), list(_deviations())
    for entry in entries:
        name = entry.operation.name
        own = [row for row in deviations if name in row["operations"] or "*" in row["operations"]]
        text = "\n".join(operation_page(entry, sections, _bugs_of(name, bugs), own)) + "\n"
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    rows = [
        f"| {e.operation.section} | [`{e.operation.name}`]({e.operation.name}.md) "
        f"| {e.operation.summary} | {e.engines} |"
        for e in entries
    ]
    (folder / "index.md").write_text("\n".join([_INDEX, *rows]) + "\n", encoding="utf-8")
    return [entry.operation.name for entry in entries]


_INDEX = """# Operations

The operations that `attnproof verify` verifies, one page each, made from the code when the site \
is built. `attnproof list NAME` prints the same in a terminal.

| SPEC | operation | what it computes | interfaces |
|---|---|---|---|"""


def _order(section: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", section))


def operation_page(
    entry: Entry,
    sections: dict[str, str],
    bugs: list[tuple[str, str]],
    deviations: list[dict[str, Any]],
) -> Iterator[str]:
    """Yield the lines of the operation's page."""
    operation = entry.operation
    yield from (
        f"# {operation.name}",
        "",
        f"{operation.summary[:1].upper()}{operation.summary[1:]}.",
        "",
    )
    anchor = sections[operation.section.partition(".")[0]]
    yield f"- Specification: [section {operation.section}](../SPEC.md#{anchor})"
    yield f"- Interfaces: {entry.engines or 'none'}"
    yield f"- In `optimized`: {entry.place}"
    yield f"- Oracles: {', '.join(entry.oracles)} ([what they check](../report.md))"
    yield f"- Verify it: `attnproof verify --candidate backend.py --ops {operation.name}`"
    yield ""
    if operation.inputs.machine is not None:
        names = ", ".join(f"`{name}`" for name in operation.call.names(operation.name))
        yield from (f"A sequence of steps through {names}.", "")
    else:
        for member in entry.members:
            yield from ("```python", member.signature, "```", "", *_text(member.text), "")
    yield from ("## Cases that always run", "", *(f"- {name}" for name in entry.boundaries), "")
    if operation.inputs.faults:
        yield from ("## Faults", "", "Ways to malform the input, each with its error.", "")
        for name, fault in operation.inputs.faults.items():
            yield f"- {name}: {fault.error.__name__} on `{fault.named}`"
        yield ""
    if bugs:
        yield from ("## Known bugs", "", "[KNOWN_BUGS.md](../KNOWN_BUGS.md) has the sources.", "")
        yield from (*(f"- {name}: {failure}" for name, failure in bugs), "")
    if deviations:
        yield from ("## Deviations of published engines", "")
        for deviation in deviations:
            yield (
                f"- {deviation['engine']} {deviation['versions']}, "
                f"{deviation['id']}: {deviation['title']}"
            )


def _text(docstring: str) -> list[str]:
    return [line.replace("<", "&lt;") for line in docstring.splitlines()]


def _sections() -> dict[str, str]:
    """Return the anchor of each section of the specification, by number."""
    text = (ROOT / "docs" / "SPEC.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## ((\d+)\. .+)$", text, re.MULTILINE)
    return {number: _anchor(heading) for heading, number in headings}


def _anchor(heading: str) -> str:
    """Return the id that Markdown gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _known_bugs() -> dict[str, str]:
    text = (ROOT / "docs" / "KNOWN_BUGS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (K\d+) \| [^|]* \| ([^|]*) \| ([^|]*) \|", text, re.MULTILINE)
    return {name: f"{trigger.strip()}: {failure.strip()}" for name, trigger, failure in rows}


def _bugs_of(name: str, bugs: dict[str, str]) -> list[tuple[str, str]]:
    """Return the known bugs that are planted in the operation, or that its cases name."""
    planted = {mutation.id for mutation in all_mutations() if mutation.operation == name}
    named = {bug for case, _ in ALL[name].inputs.boundaries() for bug in re.findall(r"K\d+", case)}
    return [(bug, text) for bug, text in bugs.items() if bug in planted | named]


def _deviations() -> Iterator[dict[str, Any]]:
    for path in sorted((ROOT / "harness" / "adapters").glob("*_deviations.toml")):
        engine = path.stem.removesuffix("_deviations")
        for deviation in tomllib.loads(path.read_text(encoding="utf-8")).get("deviation", []):
            yield deviation | {"engine": engine}


def write_samples(base: Path = PAGES) -> None:
    """Run the command of each sample; write the reports below `samples`, and their page."""
    folder = base / "samples"
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / "known.toml"
    known.write_text(_KNOWN, encoding="utf-8")
    environment = os.environ | {"ATTNPROOF_DOCS": "../../docs/{page}.html"}
    lines = [_SAMPLES]
    for sample in SAMPLES:
        own = os.path.relpath(known, ROOT)  # a report shows its command
        arguments = [own if word == "known.toml" else word for word in sample.arguments]
        out = os.path.relpath(folder / sample.folder, ROOT)
        command = [
            sys.executable,
            "-m",
            "attnproof",
            *arguments,
            *(["--no-remember"] if sample.arguments[0] == "verify" else []),
        ]
        done = subprocess.run(
            [*command, "--out", out],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != sample.exit_code:
            raise SystemExit(f"sample {sample.folder}: {done.stdout}{done.stderr}")
        shown = " ".join(("attnproof", *sample.arguments))
        lines.append(f"| [{sample.title}]({sample.folder}/index.html) | `{shown}` |")
    lines += ["", "`known.toml` of the third:", "", "```toml", _KNOWN.rstrip(), "```"]
    (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


_SAMPLES = """# Sample reports

Reports as `verify` and `bench` leave them, one file each, made when the site was built. The \
exit codes are 0, 1, 0 and 0.

| report | command |
|---|---|"""


def main() -> None:
    """Write all pages."""
    gather()
    print(f"{len(write_operations())} operations")
    if "--no-samples" in sys.argv[1:]:
        _write("samples/index.md", "# Sample reports\n\nLeft out by `--no-samples`.\n")
    else:
        write_samples()
    print(PAGES)


if __name__ == "__main__":
    main()
