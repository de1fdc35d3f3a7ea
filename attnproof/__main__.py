"""The console command `attnproof`, and `python -m attnproof`."""

from attnproof.harness.streams import prepare_streams

# Before the command line is imported, because imports open files.
prepare_streams()

from attnproof.harness.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
