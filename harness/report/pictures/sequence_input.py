"""The input of a finding in words: how many steps, or how many requests and tokens."""

from __future__ import annotations

from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.model.run import Finding
from attnproof.harness.report.pictures.sequence_view import failing_step, states_by_step
from attnproof.harness.report.shared.wording import many


def finding_steps(finding: Finding) -> list[tuple[str, str]]:
    """Label and source of each step; of a candidate that died what the case says of them."""
    return finding.steps or case_steps(finding.case)


def case_steps(case: Case) -> list[tuple[str, str]]:
    """Label and source of each step as far as the case alone tells; none without steps."""
    if not case.num_steps:
        return []
    return [(_words_of_step(step), "") for step in case.params["steps"]]


def step_count(finding: Finding) -> int:
    """Steps of the shrunk sequence, 0 for anything else."""
    return len(finding_steps(finding))


def input_size(finding: Finding) -> str:
    """Such as "3 steps, wrong after step 2 (swap rows 0 and 1)" or "1 request, 3 tokens"."""
    steps = finding_steps(finding)
    if not steps:
        return f"{many(finding.requests, 'request')}, {many(finding.tokens, 'token')}"
    failing = failing_step(finding.field, states_by_step(finding.outputs))
    if failing is None or failing >= len(steps):
        return many(len(steps), "step")
    return f"{many(len(steps), 'step')}, wrong after step {failing + 1} ({steps[failing][0]})"


def _words_of_step(step: Any) -> str:
    if not isinstance(step, dict):
        return str(step)
    values = [f"{name}={value}" for name, value in step.items() if name != "do"]
    return " ".join([str(step.get("do", "")), *values])
