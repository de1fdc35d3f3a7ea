"""The console command `attnproof`, and `python -m attnproof`."""

import os
import signal

from attnproof.harness.streams import prepare_streams


def _end(_signal: int, _frame: object) -> None:
    """End at once, as incomplete: nothing is verified before a run handles interrupts itself."""
    os.write(2, b"attnproof: interrupted before anything was verified\n")
    os._exit(3)


# Before the command line is imported: imports open files, and some swallow an interrupt.
prepare_streams()
signal.signal(signal.SIGINT, _end)

from attnproof.harness.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
