"""Workers on a Ray cluster, or on a Ray that is started here. Nothing else imports Ray."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.msgpack import decode, encode

from attnproof.harness.campaign.node import Keeper, carry_out
from attnproof.harness.campaign.pool import Ended
from attnproof.harness.campaign.records import Answer, Cost, Order
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.running.extras import install_hint, missing
from attnproof.harness.running.task.saved_failures import key_of

_RETRIES = 3
"""Times that Ray carries out an order again whose process or machine is lost."""
_ANSWER_S = 30
"""Seconds within which a cluster must answer."""
_SIZE_S = 2.0
"""Seconds for which the number of CPUs is taken for the same."""
_STORE_BYTES = 100 << 20
"""Memory of the object store of a Ray that is started here: no object is larger than an answer."""
_PROBE = "import ray; ray.init(address={!r}, log_to_driver=False, logging_level='CRITICAL')"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise a warning
}


def require_ray() -> None:
    """Raise UsageError if Ray is not installed."""
    if missing("ray"):
        raise UsageError(f"campaign needs Ray: {install_hint('ray')}")


class RayPool:
    """Workers on all machines of a cluster, and the keeper of the example database on this one."""

    def __init__(self, address: str, jobs: int, examples: Path) -> None:
        """Connect to `address`, or start Ray with `jobs` CPUs for "" (InfrastructureError)."""
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        import ray

        self._ray: Any = ray
        self._running: dict[Any, tuple[Order, int, float]] = {}
        self._size, self._size_due = 1, 0.0
        if address:
            _check_address(address)
        quiet = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        # "local": otherwise Ray joins a cluster that happens to run on this machine.
        here = {"address": "local", "num_cpus": jobs, "object_store_memory": _STORE_BYTES}
        here |= {"include_dashboard": False}
        try:
            ray.init(**({"address": address} if address else here), **quiet)
        except Exception as error:
            raise InfrastructureError(f"Ray does not start: {_line(error)}") from None
        node = ray.get_runtime_context().get_node_id()
        place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        kept = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
        keeper: Any = ray.remote(Keeper).options(scheduling_strategy=place, **kept)
        self._keeper = keeper.remote(str(examples.resolve()))
        spread = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_retries": _RETRIES}
        self._carry_out: Any = ray.remote(carry_out).options(**spread)

    def size(self) -> int:
        """Return the number of CPUs of the cluster."""
        if time.monotonic() > self._size_due:
            self._size = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._size_due = time.monotonic() + _SIZE_S
        return self._size

    def submit(self, order: Order) -> None:
        """Hand an order to a worker."""
        data, key = encode(order), key_of(order.operation, order.candidate)
        reference = self._carry_out.remote(data, key, list(order.values), self._keeper)
        self._running[reference] = order, len(data), time.monotonic()

    def wait(self, seconds: float) -> list[Ended]:
        """Return the orders that have ended, after at most so many seconds."""
        if not self._running:
            return []
        references = list(self._running)
        self._ray.wait(references, timeout=seconds)  # for the first one; there may be more
        ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [self._ended(reference) for reference in ready]

    def _ended(self, reference: Any) -> Ended:
        order, size, submitted = self._running.pop(reference)
        try:
            data, start_s = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Ended(order, None, _line(error))
        total_s = round(time.monotonic() - submitted, 3)
        cost = Cost(start_s=start_s, total_s=total_s, order_bytes=size, answer_bytes=len(data))
        return Ended(order, decode(data, type=Answer), "", cost)

    def cancel(self) -> None:
        """End all orders that are being carried out."""
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=True)
        self._running.clear()

    def close(self) -> None:
        """Disconnect, and end a Ray that was started here."""
        self._ray.shutdown()


def _check_address(address: str) -> None:
    """Raise InfrastructureError unless a cluster answers soon, UsageError for no address."""
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isdigit()) or "/" in host:
            raise UsageError(f"--address is {address!r}, expected auto or HOST:PORT")
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWER_S / 3).close()
        except (OSError, OverflowError) as error:
            raise _unanswered(address, str(error)) from None
    # In a process of its own: a connection that is not Ray's blocks for minutes, Ctrl-C too.
    command = [sys.executable, "-c", _PROBE.format(address)]
    _run(command, lambda why: _unanswered(address, why))


def _run(command: list[str], error: Callable[[str], InfrastructureError]) -> None:
    """Run a command; raise the error with its last line if it fails or takes too long."""
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired:
        raise error(f"no answer within {_ANSWER_S} s") from None
    except subprocess.CalledProcessError as failed:
        lines = failed.stderr.decode(errors="replace").strip().splitlines()
        raise error(lines[-1] if lines else f"status {failed.returncode}") from None


def _unanswered(address: str, why: str) -> InfrastructureError:
    return InfrastructureError(f"no Ray cluster answers at --address {address}: {why}")


def _line(error: BaseException) -> str:
    """Return the last line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
