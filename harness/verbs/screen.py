"""A console for what has colours, a width or a layout; `messages` prints plain lines."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnproof.harness.escaping import escape_line, escape_lines


class Screen(Console):
    """A console that prints text as it is: no markup, no emoji codes, no hidden characters."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(
            stderr=stderr, soft_wrap=soft_wrap, highlight=False, markup=False, emoji=False
        )

    def print_line(self, text: str, *, style: str | None = None) -> None:
        """Print the text on one line, however long."""
        self.print(escape_line(text), style=style, soft_wrap=True)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of anything printed; only rich's own control codes stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=escape_lines(segment.text))
