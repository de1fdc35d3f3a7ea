"""The JSON Schema of summary.json.

`python -m attnproof.harness.report.formats.schema` writes it to `SCHEMA_PATH`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnproof.harness.report.formats.summary import Summary
from attnproof.harness.report.shared.files import replace_file

SCHEMA_PATH = Path(__file__).with_name("summary.schema.json")


def schema_bytes() -> bytes:
    """Return the JSON Schema of summary.json."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(Summary),
    }
    return msgspec.json.format(msgspec.json.encode(schema, order="sorted"), indent=2) + b"\n"


if __name__ == "__main__":
    replace_file(SCHEMA_PATH, schema_bytes())
