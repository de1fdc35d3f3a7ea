"""Processes of a candidate: replies, the ways in which they fail, and what they leave behind."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.processes.channel import messages
from attnproof.harness.running.processes.child import EndKind, Limits
from attnproof.harness.running.processes.launcher import Launcher
from attnproof.harness.running.processes.tree import Activity, children_of


def descriptors():
    """Return the open descriptors of this process."""
    found = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    return [number for number in sorted(found) if Path(f"/proc/self/fd/{number}").exists()]


def serve(order, channel):
    """Do what each message says, then reply with it."""
    socket = next(number for number in descriptors() if number > 2)
    kept = []
    for message in messages(channel):
        match message:
            case b"exit":
                os._exit(3)
            case b"crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case b"real-time signal":
                os.kill(os.getpid(), 40)
            case b"hang":
                time.sleep(60)
            case b"close":
                os.close(socket)
                time.sleep(60)
            case b"garbage":
                os.write(socket, b"abc")
            case b"part":
                os.write(socket, b"\xa7npf")
                time.sleep(60)
            case b"huge":
                os.write(socket, struct.pack("!4s16sQ", b"\xa7npf", bytes(16), 1 << 60))
            case b"twice":
                channel.send(message)
            case b"fork":
                os.fork()
            case b"leave":
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(77)"])
            case b"leave a daemon":
                if not os.fork():
                    os.setsid()
                    if not os.fork():
                        time.sleep(77)
                    os._exit(0)
                os.wait()
            case b"memory of a child":
                if not os.fork():
                    kept.append(b"x" * (300 << 20))
                time.sleep(60)
            case b"memory":
                kept.append(b"x" * (300 << 20))
                time.sleep(60)
            case b"work":
                while time.process_time() < 0.5:
                    pass
            case b"output":
                os.write(1, bytes(2 << 20))
                time.sleep(60)
        facts = f"{os.getpid()} {os.getsid(0)} {descriptors()} {order!r} {len(kept)}"
        channel.send(facts.encode() if message == b"facts" else message)


@pytest.fixture
def child():
    launcher = Launcher(serve)
    streams = [os.memfd_create("out"), os.memfd_create("err")]
    made = launcher.start(b"order", *streams)
    made.limits = Limits(made.memory() + (200 << 20), 1 << 20)
    yield made
    made.kill()
    launcher.stop()
    for stream in streams:
        os.close(stream)


def test_messages_are_answered(child):
    for message in (b"x", b"", bytes(3 << 20)):
        assert child.ask(message, 10) == message


def test_a_child_is_a_session_with_one_descriptor_more(child):
    facts = child.ask(b"facts", 10).decode()
    pid = child.pid
    assert facts.startswith(f"{pid} {pid} [0, 1, 2, ")
    assert "b'order'" in facts


@pytest.mark.parametrize(
    ("message", "kind", "detail"),
    [
        (b"exit", EndKind.EXITED, "status 3"),
        (b"crash", EndKind.CRASHED, "SIGSEGV"),
        (b"real-time signal", EndKind.CRASHED, "signal 40"),
        (b"hang", EndKind.LATE, "1 s"),
        (b"close", EndKind.CLOSED_PIPE, ""),
        (b"garbage", EndKind.FORGED, ""),
        (b"part", EndKind.LATE, "1 s"),
        (b"huge", EndKind.FORGED, ""),
        (b"output", EndKind.OUTPUT, ""),
    ],
)
def test_the_reason_for_a_missing_reply_is_known(child, monkeypatch, message, kind, detail):
    monkeypatch.setattr("attnproof.harness.running.processes.child._CLOSING_S", 0.1)
    assert child.ask(message, 1.0) is None
    assert child.end() == (kind, detail)
    assert child.survivors == []


def test_memory_beyond_the_limit_ends_the_child(child):
    assert child.ask(b"memory", 30) is None
    assert child.end().kind is EndKind.MEMORY


def test_memory_beyond_the_limit_ends_descendants_without_delay(child):
    assert child.ask(b"memory of a child", 30) is None
    begun = time.monotonic()
    assert child.end().kind is EndKind.MEMORY
    assert time.monotonic() - begun < 0.8  # they would have 1 s if the child had been wrong alone
    assert child.survivors == []


def test_a_second_reply_is_noticed(child):
    first = child.ask(b"twice", 10)  # None if both replies arrived at once
    time.sleep(0.2)
    assert first is None or child.ask(b"x", 10) is None
    assert child.end().kind is EndKind.FORGED


def test_a_forked_process_does_not_reply(child):
    assert child.ask(b"fork", 10) == b"fork"
    for number in range(20):
        assert child.ask(b"%d" % number, 10) == b"%d" % number


@pytest.mark.parametrize("message", [b"leave", b"leave a daemon"])
def test_processes_left_behind_are_named_and_ended(child, message):
    assert child.ask(message, 10) == message
    child.kill()
    assert len(child.survivors) == 1
    assert "python" in child.survivors[0]


def test_a_pause_of_this_process_is_not_time_of_the_child(child, monkeypatch):
    clock = iter([0.0, *(100.0 * n for n in range(1, 1000))])
    monkeypatch.setattr(
        "attnproof.harness.running.processes.stopwatch.time.monotonic", lambda: next(clock)
    )
    assert child.ask(b"x", 5.0) == b"x"


@pytest.fixture
def crowded_core():
    """A core on which four processes work without end."""
    core = min(os.sched_getaffinity(0))
    busy = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile 1: pass"]
    rivals = [subprocess.Popen(busy) for _ in range(4)]
    yield core
    for rival in rivals:
        rival.kill()
        rival.wait()


def test_a_wait_for_a_core_is_not_time_of_the_child(child, crowded_core):
    os.sched_setaffinity(child.pid, [crowded_core])
    assert child.ask(b"work", 1.0) == b"work"  # half a second of work takes more than two


@pytest.mark.parametrize("is_runnable", [True, False])
def test_an_import_is_late_only_without_work(is_runnable, monkeypatch):
    # What a launcher sees of an import that waits for a core, and of one that waits for a lock.
    monkeypatch.setattr(
        "attnproof.harness.running.processes.stopwatch.activity_of",
        lambda _pid: Activity(0.0, is_runnable=is_runnable),
    )
    monkeypatch.setattr("attnproof.harness.running.processes.launcher._REPLY_S", 0.2)
    launcher = Launcher(serve, lambda _order: time.sleep(1))
    if is_runnable:
        launcher.prepare(b"")
    else:
        with pytest.raises(InfrastructureError, match=r"does not answer within 0\.2 s"):
            launcher.prepare(b"")
    launcher.stop()


@pytest.fixture
def new_children():
    """Return the children that this process has had since the begin of the test."""
    others = children_of(os.getpid())
    return lambda: [pid for pid in children_of(os.getpid()) if pid not in others]


def test_a_signal_to_the_whole_group_does_not_end_the_launcher(new_children):
    launcher = Launcher(serve)
    launcher.prepare(b"")
    (pid,) = new_children()
    os.kill(pid, signal.SIGTERM)
    launcher.prepare(b"")
    assert new_children() == [pid]
    launcher.stop()


def test_a_killed_launcher_is_replaced(new_children):
    launcher = Launcher(serve)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    first = launcher.start(b"", nowhere, nowhere)
    (pid,) = new_children()
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{first.pid}").exists():
        time.sleep(0.01)
    assert first.ask(b"x", 10) is None
    assert first.end().kind is EndKind.CLOSED_PIPE
    second = launcher.start(b"", nowhere, nowhere)
    assert second.ask(b"x", 10) == b"x"
    second.kill()
    launcher.stop()
    os.close(nowhere)


def test_everything_ends_with_the_process_that_judges(tmp_path):
    program = """
import os, signal
from attnproof.harness.running.processes.launcher import Launcher
from tests.harness.running.processes.test_launcher import serve
child = Launcher(serve).start(b"", 1, 2)
child.ask(b"leave a daemon", 10)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "LEFT_BY": str(tmp_path)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=60
    )
    assert run.stdout, run.stderr
    deadline = time.monotonic() + 5
    while (left := marked(str(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def marked(text):
    """Return the ids of processes that have the text in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if text.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found
