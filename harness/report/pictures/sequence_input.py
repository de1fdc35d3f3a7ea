"""The input of a finding in words: the number of steps, or of requests and tokens."""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.model.run import Finding
from attnproof.harness.operations import ALL
from attnproof.harness.report.pictures.sequence_view import failing_step, states_by_step
from attnproof.harness.report.shared.wording import many


def finding_steps(finding: Finding) -> list[tuple[str, str]]:
    """Return label and source of each step; labels from the case if the candidate died."""
    return finding.steps or case_steps(finding.case)


def case_steps(case: Case) -> list[tuple[str, str]]:
    """Return the label of each step from the case alone, with "" as source; [] without steps."""
    if not case.num_steps:
        return []
    steps = [(_words_of_step(step), "") for step in case.params["steps"]]
    if ALL[case.operation].section:
        return steps
    # The first state of a class of a user's own is that after its instantiation.
    arguments = {n: value for n, value in case.params.items() if n not in ("steps", "layout")}
    return [(_call(case.operation, arguments), ""), *steps]


def step_count(finding: Finding) -> int:
    """Return the number of steps of the shrunk sequence, 0 for a single call."""
    return len(finding_steps(finding))


def input_size(finding: Finding) -> str:
    """Return "3 steps, wrong after step 2 (swap rows 0 and 1)", or "1 request, 3 tokens"."""
    steps = finding_steps(finding)
    if not steps:
        return f"{many(finding.requests, 'request')}, {many(finding.tokens, 'token')}"
    failing = failing_step(finding.place, states_by_step(finding.outputs))
    if failing is None or failing >= len(steps):
        return many(len(steps), "step")
    return f"{many(len(steps), 'step')}, wrong after step {failing + 1} ({steps[failing][0]})"


def _words_of_step(step: Any) -> str:
    if not isinstance(step, dict):
        return str(step)
    return _call(str(step.get("do", "")), {n: value for n, value in step.items() if n != "do"})


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"
