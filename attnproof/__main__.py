"""The console command `attnproof`, and `python -m attnproof`."""

from typing import NoReturn

from attnproof.harness.running.processes.supervision import supervise
from attnproof.harness.streams import prepare_streams


def main() -> NoReturn:
    """Run the command line and exit; print an expected error as one line on stderr."""
    prepare_streams()  # before anything opens a file
    supervise(_command_line)


def _command_line() -> int:
    # Imported in the process that handles an interrupt: imports open files, and swallow it.
    from attnproof.harness.cli import run_command

    return run_command()


if __name__ == "__main__":
    main()
