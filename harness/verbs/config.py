"""`attnproof config`: the value of each option of `verify`, and where it came from."""

from __future__ import annotations

import json

from attnproof.harness.escaping import escape_tree
from attnproof.harness.verbs.configuration import Setting, setting_lines
from attnproof.harness.verbs.messages import say

_JSON = "as-json"
"""The option that selects the format; it is not printed."""


def print_settings(listed: list[Setting]) -> None:
    """Print a line for each option, or one JSON object with `--json`."""
    shown = [setting for setting in listed if setting.option != _JSON]
    if not any(setting.value for setting in listed if setting.option == _JSON):
        say("\n".join(setting_lines(shown)))
        return
    tree = {setting.option: {"value": setting.value, "source": setting.source} for setting in shown}
    say(json.dumps(escape_tree(json.loads(json.dumps(tree, default=str))), indent=2))
