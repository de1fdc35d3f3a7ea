"""`attnproof config`: the value of each option of `verify`, and where it came from."""

from __future__ import annotations

import json

from attnproof.harness.escaping import escape_tree
from attnproof.harness.verbs.configuration import Setting, setting_lines
from attnproof.harness.verbs.messages import say

_JSON = "as-json"
"""The option that selects the format; it is not printed."""


def print_settings(found: list[Setting]) -> None:
    """Print a line for each option, or one JSON object with `--json`."""
    shown = [one for one in found if one.option != _JSON]
    if not any(one.value for one in found if one.option == _JSON):
        say("\n".join(setting_lines(shown)))
        return
    tree = {one.option: {"value": one.value, "source": one.source} for one in shown}
    say(json.dumps(escape_tree(json.loads(json.dumps(tree, default=str))), indent=2))
