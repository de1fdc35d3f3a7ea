"""The help of the command line: examples, whole summaries; and the refusal of empty values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand

from attnproof.harness.running.errors import UsageError

_CANDIDATE = "--candidate my_backend.py"
_EXAMPLES: Final = {
    "verify": (_CANDIDATE, f"{_CANDIDATE} --ops split_decodes_and_prefills"),
    "bench": (_CANDIDATE, f"{_CANDIDATE} --against reference --save-baseline main"),
    "replay": ("3f9a1c0b77de", f"case.json {_CANDIDATE}"),
    "record": ("--out reports/recording -- vllm serve MODEL",),
    "diff": ("reports/main reports/latest", "reports/main reports/latest --markdown"),
    "config": ("", "--depth quick"),
    "deviations": ("--draft reports/latest --out deviations.toml",),
    "init": ("my_operations.py --from my_backend.py:my_function",),
    "list": ("", "split_decodes_and_prefills"),
    "doctor": ("",),
    "mutants": (f"{_CANDIDATE} --ops split_decodes_and_prefills",),
    "campaign": (f"{_CANDIDATE} --hours 8", "--tasks 100 --out reports/campaign"),
    "strength": ("", "split_decodes_and_prefills --seeds 3"),
}
"""Arguments of one or two calls of each verb."""

START: Final = f"Start with: attnproof verify {_CANDIDATE}"
EPILOG: Final = "\n".join(
    [
        "\b",
        "Examples:",
        "  attnproof list                                # names of the operations",
        f"  attnproof verify {_CANDIDATE}    # are yours right?",
        f"  attnproof bench {_CANDIDATE}     # how fast are they?",
    ]
)
"""End of `attnproof --help`; "\b" keeps the lines as they are."""


_NUMBERS = {
    "valid integer": ("a whole number", 1),
    "valid number": ("a number", 1.5),
    "valid float": ("a number", 1.5),
}
"""Words and an example for each of typer's messages on a number; its releases share no type."""


def misuse_line(misuse: Any, arguments: Sequence[str]) -> str:
    """Return an error of the arguments in one line, with the right form.

    `misuse` is a usage error of typer, or of its copy of click.
    """
    message = misuse.format_message().rstrip(".")
    parameter = getattr(misuse, "param", None)
    number = next((known for text, known in _NUMBERS.items() if text in message), None)
    if parameter is not None and number is not None:
        words, example = number
        flag = max(parameter.opts, key=len)
        shown = example if parameter.default is None else parameter.default
        value = _value_of(flag, arguments)
        return f"{flag} is {value!r}, expected {words} such as {flag} {shown}"
    verb = str(misuse.ctx.command.name) if misuse.ctx else next(iter(arguments), "")
    if verb in _EXAMPLES:
        call = f"attnproof {verb} {_EXAMPLES[verb][0]}".rstrip()
        return f"{message}; for example: {call} (`attnproof {verb} -h` lists the options)"
    return f"{message} (`attnproof -h` lists the verbs)" if misuse.ctx else message


def _value_of(flag: str, arguments: Sequence[str]) -> str:
    """Return the last value of an option, "" if it is not there."""
    places = [place for place, text in enumerate(arguments) if text.partition("=")[0] == flag]
    if not places:
        return ""
    _, sign, value = arguments[places[-1]].partition("=")
    return value if sign else "".join(arguments[places[-1] + 1 : places[-1] + 2])


class Verb(TyperCommand):
    """A verb whose help begins with examples, and which refuses empty arguments."""

    def get_short_help_str(self, limit: int = 45) -> str:  # noqa: ARG002 (click's signature)
        """Return the summary, whole."""
        return (self.help or "").partition("\n\n")[0].replace("\n", " ")

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, then the text."""
        formatter.write_paragraph()
        with formatter.indentation():
            for arguments in _EXAMPLES[str(self.name)]:
                indent = " " * formatter.current_indent
                formatter.write(f"{indent}$ attnproof {self.name} {arguments}".rstrip() + "\n")
        super().format_help_text(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; refuse empty ones (UsageError): an unset variable of a script."""
        own = args[: args.index("--")] if "--" in args else args
        for place, text in enumerate(own):
            name = own[place - 1] if place and not text else text.removesuffix("=")
            if not text or (text.startswith("--") and text.endswith("=")):
                what = name if name.startswith("-") else "an argument"
                raise UsageError(f"{what} is empty: give it a value, or leave it out")
        return super().parse_args(ctx, args)
