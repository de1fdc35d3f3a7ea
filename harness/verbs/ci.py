"""`--ci`: what a run writes for GitHub Actions and for GitLab beside its report."""

from __future__ import annotations

import os
from pathlib import Path

from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Run
from attnproof.harness.report.formats.code_quality import code_quality_bytes
from attnproof.harness.report.formats.github import step_outputs, workflow_commands
from attnproof.harness.report.shared.files import replace_file
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.verbs.messages import complain
from attnproof.harness.verbs.output import CODE_QUALITY

_SYSTEMS = ("github", "gitlab")


def check_ci(system: str) -> None:
    """Raise UsageError for an unknown system; "" stands for none."""
    if system and system not in _SYSTEMS:
        raise UsageError(f"--ci is {system!r}, expected {' or '.join(_SYSTEMS)}")


def publish(run: Run, place: Path, system: str) -> None:
    """Write what the system reads; `place` is the folder of the report.

    GitHub: annotations on standard output, the text of summary.md at the end of the file
    $GITHUB_STEP_SUMMARY, the outputs of the step at the end of $GITHUB_OUTPUT. GitLab: a
    code-quality report in the folder. Raise InfrastructureError if a file cannot be written.
    """
    try:
        if system == "github":
            _publish_to_github(run, place)
        elif system == "gitlab":
            data = attempt(CODE_QUALITY, lambda: code_quality_bytes(run), lambda _fault: b"")
            if data:
                replace_file(place / CODE_QUALITY, data)
    except OSError as error:
        raise InfrastructureError(
            f"--ci {system}: {error.filename} cannot be written: {error.strerror}"
        ) from None


def _publish_to_github(run: Run, place: Path) -> None:
    # The commands are not escaped by `say`, which would make them plain text.
    for line in attempt("the annotations", lambda: workflow_commands(run), lambda _fault: []):
        print(line, flush=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        _append(summary, (place / "summary.md").read_text(encoding="utf-8"))
    else:
        complain("--ci github: GITHUB_STEP_SUMMARY is not set, so there is no step summary")
    if outputs := os.environ.get("GITHUB_OUTPUT"):
        _append(outputs, step_outputs(run, place))


def _append(path: str, text: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text)
