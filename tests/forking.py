"""Call a function as the main program of a forked process, which has imported torch already."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

_NOTHING: Mapping[str, str] = {}


def become(
    function: Callable[[], object],
    folder: Path,
    out: int,
    err: int,
    environment: Mapping[str, str] = _NOTHING,
) -> NoReturn:
    """Call the function as the main program of a session of its own, in a process just forked.

    `out` and `err` are descriptors of its streams. The exit status is 0, that of `SystemExit`,
    or 1 after a traceback.
    """
    code: object = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDONLY)
        for stream, descriptor in enumerate((nowhere, out, err)):
            os.dup2(descriptor, stream)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        warnings.resetwarnings()
        os.chdir(folder)
        os.environ.update(environment)
        sys.path[:0] = [str(folder), *environment.get("PYTHONPATH", "").split(":")]
        function()
        code = 0
    except SystemExit as ending:
        code = 0 if ending.code is None else ending.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
