"""Print the figures of campaigns: cases a second, start-up, transfer, and what the driver bears.

    python tools/campaign_figures.py reports/campaign [FOLDER...]

The last figure feeds the answers of the first ledger to a driver again and again, with a worker
that answers at once: it is the number of tasks a second at which the driver is the limit.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

from attnproof.harness.campaign.driver import Aim, Driver
from attnproof.harness.campaign.ledger import LEDGER, CampaignLedger, read_ledger
from attnproof.harness.campaign.pool import Ended
from attnproof.harness.campaign.records import Begun, Order, Pair, TaskEnded
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings

_REPLAYED = 2000


class _Replay:
    """A pool that answers each order with that of an earlier task of its pair."""

    def __init__(self, tasks: list[TaskEnded], workers: int) -> None:
        self._answers = {task.pair: task for task in tasks}
        self._workers = workers
        self._waiting: list[Order] = []

    def size(self) -> int:
        return self._workers

    def submit(self, order: Order) -> None:
        self._waiting.append(order)
        msgspec.msgpack.encode(order)

    def wait(self, _seconds: float) -> list[Ended]:
        order = self._waiting.pop(0)
        task = self._answers[order.pair]
        return [Ended(order, task.answer, "", task.cost)]

    def cancel(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        pass


def _print_figures(folder: Path, tasks: list[TaskEnded]) -> None:
    results = [task.answer.outcome.result for task in tasks]
    cases = sum(result.cases for result in results)
    starts = [task.cost.start_s for task in tasks if task.cost.start_s]
    warm = [task for task in tasks if not task.cost.start_s]
    rates = f"{cases / tasks[-1].at:.1f} cases/s"
    if used := sum(task.answer.cpu_s for task in tasks):
        rates += f", {cases / used:.1f} cases a second of CPU time"
    print(f"{folder}: {len(tasks)} tasks, {cases:,} cases, {rates}")
    print(f"  start of a worker's process: {', '.join(f'{s:.1f}' for s in starts)} s")
    lost = [task.cost.total_s - task.answer.seconds for task in warm]
    forked = [task.answer.seconds - task.answer.outcome.result.seconds for task in warm]
    if warm:
        print(
            f"  of a further task, beside its cases (median): {median(forked):.2f} s in its "
            f"process, {median(lost):.3f} s for Ray and the driver; {_seconds(tasks)} s for cases"
        )
    print(
        f"  bytes of an order and of its answer (median): "
        f"{median(task.cost.order_bytes for task in tasks):,.0f}, "
        f"{median(task.cost.answer_bytes for task in tasks):,.0f}"
    )


def _seconds(tasks: list[TaskEnded]) -> str:
    return f"{median(task.answer.outcome.result.seconds for task in tasks):.1f}"


def _print_driver(begun: Begun, tasks: list[TaskEnded], workers: int) -> None:
    candidate = Candidate(tasks[0].pair.candidate, "/replayed")
    pairs = {Pair(*task.pair): (ALL[task.pair.operation], candidate) for task in tasks}
    with tempfile.TemporaryDirectory() as folder:
        ledger = CampaignLedger(Path(folder), begun)
        aim = Aim(pairs, Settings(), 3600.0, _REPLAYED)
        pool = _Replay(tasks, workers)
        driver = Driver(
            aim, ledger, Path(folder), pool, lambda _driver, _line, _new: None, lambda _: None
        )
        started, used = time.monotonic(), time.process_time()
        driver.work()
        rate = _REPLAYED / (time.monotonic() - started)
        cpu_ms = 1000 * (time.process_time() - used) / _REPLAYED
        ledger.close()
        size = (Path(folder) / LEDGER).stat().st_size
    print(
        f"driver with {workers:,} workers: {rate:.0f} tasks/s, {cpu_ms:.1f} ms of CPU time and "
        f"{size // _REPLAYED:,} bytes of the ledger a task"
    )


def main() -> None:
    """Print the figures of the campaigns in the folders of the command line."""
    first: tuple[Begun, list[TaskEnded]] | None = None
    for name in sys.argv[1:]:
        lines, _ = read_ledger(Path(name) / LEDGER)
        tasks = [line for line in lines if isinstance(line, TaskEnded)]
        _print_figures(Path(name), tasks)
        assert isinstance(lines[0], Begun)
        first = first or (lines[0], tasks)
    if first is not None:
        for workers in (2, 1600):
            _print_driver(*first, workers)


if __name__ == "__main__":
    main()
