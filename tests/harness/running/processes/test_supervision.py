"""The command's exit code is what the command line reports as its last act, and nothing else."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from attnproof.harness.running.processes.supervision import supervise

LINE = "attnproof: the command ended before its last line ({}): there is no verdict"


def forked_early():
    """End as a forked copy of the process would that reports a verdict of its own."""
    if not os.fork():
        sys.exit(0)
    os._exit(0)


ENDS = {
    "exit": (lambda: sys.exit(0), "exit code 0"),
    "exit at once": (lambda: os._exit(0), "exit code 0"),
    "exit as a failure": (lambda: os._exit(1), "exit code 1"),
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    "killed by a signal without a name": (lambda: os.kill(os.getpid(), 40), "signal 40"),
    "terminated": (lambda: os.kill(os.getpid(), signal.SIGTERM), "SIGTERM"),
    "leaves a process": (forked_early, "exit code 0"),
}


@pytest.mark.parametrize("code", [0, 1, 3, 143])
def test_the_code_is_that_of_the_command_line(code, forked):
    done = forked(lambda: supervise(lambda: code))
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(("end", "how"), ENDS.values(), ids=ENDS)
def test_an_end_without_a_report_is_no_success(end, how, forked):
    done = forked(lambda: supervise(end))
    assert (done.returncode, done.stderr.splitlines()) == (5, [LINE.format(how)])


def test_an_end_after_the_report_must_agree_with_it(forked):
    done = forked(lambda: program(CRASH_AT_EXIT))
    assert (done.returncode, done.stderr.splitlines()) == (5, [LINE.format("exit code 0")])


def test_an_ignored_end_of_children_hides_no_status(forked):
    def main():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        supervise(lambda: 1)

    assert forked(main).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_command_reaches_the_command_line_once(number):
    terminal = Terminal()
    assert terminal.read_line() == "ready"
    os.kill(terminal.pid, number)
    assert terminal.read_line() == signal.Signals(number).name
    assert terminal.end("x\n") == (7, "")


def test_a_key_of_the_terminal_reaches_the_command_line_once():
    terminal = Terminal()
    assert terminal.read_line() == "ready"
    os.write(terminal.master, b"\x03")
    assert terminal.read_line() == "SIGINT"
    assert terminal.end("x\n") == (7, "")


def test_a_stopped_command_goes_on():
    terminal = Terminal()
    assert terminal.read_line() == "ready"
    os.killpg(terminal.pid, signal.SIGSTOP)
    _, status = os.waitpid(terminal.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.killpg(terminal.pid, signal.SIGCONT)
    assert terminal.end("x\n") == (7, "")


def test_a_killed_command_takes_its_command_line_with_it():
    words = [sys.executable, "-c", PRINT_SIGNALS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        assert process.stdout.read() == b""  # the end comes when no process can write


def program(text):
    """Become another program, as `forked` ends without exit handlers."""
    os.execv(sys.executable, [sys.executable, "-c", text])


CRASH_AT_EXIT = """
import atexit, os
from attnproof.harness.running.processes.supervision import supervise
def run():
    atexit.register(os._exit, 0)
    return 1
supervise(run)
"""
PRINT_SIGNALS = """
import os, select, signal
from attnproof.harness.running.processes.supervision import supervise
def name(number, _):
    os.write(1, f"{signal.Signals(number).name}\\n".encode())  # print may be interrupted itself
def run():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, name)
    # A signal just before a read would wait for its end: the handler runs between two statements.
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender)
    print("ready", flush=True)
    while 0 not in select.select([0, receiver], [], [])[0]:
        os.read(receiver, 9)
    return 7
supervise(run)
"""


class Terminal:
    """A supervised command in the foreground of a terminal; it ends with 7 after a line."""

    def __init__(self) -> None:
        self.pid, self.master = pty.fork()
        if not self.pid:
            program(PRINT_SIGNALS)
        attributes = termios.tcgetattr(self.master)
        attributes[3] &= ~termios.ECHO
        # Otherwise a key that sends a signal may discard what the command prints in answer.
        attributes[3] |= termios.NOFLSH
        termios.tcsetattr(self.master, termios.TCSANOW, attributes)

    def read_line(self) -> str:
        """Return the next line that the command prints."""
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.master, 1)
        return line.decode().strip()

    def end(self, typed: str) -> tuple[int, str]:
        """Type the text; return the exit code of the command and the rest of its output."""
        os.write(self.master, typed.encode())
        rest = b""
        with suppress(OSError):  # EIO is the end of a terminal
            while part := os.read(self.master, 1024):
                rest += part
        os.close(self.master)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), rest.decode()
