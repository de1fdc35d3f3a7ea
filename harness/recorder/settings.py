"""Settings of the recorder, which reach an engine's processes as environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER, SAMPLE, LIMIT = "ATTNPROOF_RECORD", "ATTNPROOF_RECORD_SAMPLE", "ATTNPROOF_RECORD_LIMIT"
PLUGIN = "attnproof_record"
"""Name of the entry point, as in VLLM_PLUGINS."""


@dataclass(frozen=True)
class Settings:
    """What to record, and where."""

    folder: Path
    """Folder of the files; created at the first step."""
    sample: int = 1
    """One in so many engine steps is recorded."""
    limit: int = 0
    """Recorded steps of a process after which it stops, 0 for none."""

    def environment(self) -> dict[str, str]:
        """Return the variables that arm the plugin with these settings."""
        return {FOLDER: str(self.folder), SAMPLE: str(self.sample), LIMIT: str(self.limit)}


def settings_of(environment: Mapping[str, str]) -> Settings | None:
    """Return the settings, None if the recorder is not armed (ValueError for a bad number)."""
    folder = environment.get(FOLDER, "")
    if not folder:
        return None
    sample, limit = (int(environment.get(n) or d) for n, d in ((SAMPLE, 1), (LIMIT, 0)))
    if sample < 1 or limit < 0:
        raise ValueError(f"{SAMPLE}={sample} and {LIMIT}={limit}: expected at least 1 and 0")
    return Settings(Path(folder), sample, limit)
