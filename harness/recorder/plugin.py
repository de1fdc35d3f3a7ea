"""The plugin of vLLM: arms the recorder if ATTNPROOF_RECORD names a folder."""

from __future__ import annotations

import os
import sys

from attnproof.harness.recorder.settings import settings_of

_armed = False


def arm() -> None:
    """Hook the engine's modules when they are imported; do nothing without the variable.

    vLLM calls this in each of its processes, in some more than once.
    """
    global _armed  # noqa: PLW0603 - a process is armed once
    if _armed:
        return
    try:
        settings = settings_of(os.environ)
        if settings is None:
            return
        from attnproof.harness.recorder.recorder import Recorder
        from attnproof.harness.recorder.vllm import hook_engine

        hook_engine(Recorder(settings))
        _armed = True
    except Exception as error:  # an engine starts without its recorder, too
        print(f"attnproof record: not armed: {type(error).__name__}: {error}", file=sys.stderr)
