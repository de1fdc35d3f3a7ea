"""Oracle 10, cost: on a GPU the host waits for the device only where SPEC.md allows it (rule 0.2).

Bug classes: a length that is read back from the device, a copy of pageable memory, an
accidental wait that hides a race (K21). Launches and bytes are not counted yet.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.candidate import device_type
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.device import wait_message
from attnproof.harness.oracles.trial import Trial

NAME = "cost"
CONTRACT = "on a GPU the host waits for the device only where SPEC.md allows it (rule 0.2)"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure if the call fails while PyTorch raises an error at each wait."""
    if not checks(trial):
        return
    attempt = trial.unwaited
    if attempt.error is None:
        return
    wait = wait_message(attempt.error)
    diagnosis, message, expected = (
        "synchronises host and device",
        "the call waits for the device, which SPEC.md section "
        f"{trial.operation.section} does not allow",
        "no wait",
    )
    if not wait:  # a library with its own message for a wait, or a call that fails otherwise
        diagnosis = "fails where a wait is an error"
        message = f"the call that may not wait for the device raises {attempt.error!r}"[:300]
        expected = "what the first call gave"
    yield Failure(
        oracle=NAME,
        field="",
        diagnosis=diagnosis,
        message=message,
        expected=expected,
        got=wait or type(attempt.error).__name__,
        log=attempt.log,
    )


def checks(trial: Trial) -> int:
    """Return 1 if the call may not wait: on a GPU, and not allowed to wait by SPEC.md."""
    operation = trial.operation
    # The reference may wait: it is written for clarity, not for speed.
    slow = trial.of_reference and not operation.built_in.shared
    # Between the steps of a sequence the harness itself reads device tensors.
    observed = not operation.call.takes_arguments
    allowed = (
        device_type(trial.device) != "cuda"
        or slow
        or observed
        or operation.contract.may_sync(trial.case)
    )
    return int(not allowed)
