"""The help of the command line: examples, whole summaries; and the refusal of empty values."""

from __future__ import annotations

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
