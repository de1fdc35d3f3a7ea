"""Keys that the steps of requests write into blocks, and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnproof.harness.operations.kv_manager.layout import Layout
from attnproof.harness.operations.kv_manager.memory import NULL, Memory, Table
from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.harness.operations.kv_manager.wrong_answer import WrongAnswerError


class Contents:
    """Memory of a cache, by the tables and tokens of all requests."""

    def __init__(
        self,
        layout: Layout,
        memory: Memory,
        tables: Mapping[str, Sequence[Table]],
        requests: Requests,
    ) -> None:
        self._layout = layout
        self._memory = memory
        self._tables = tables
        self._requests = requests

    def write_and_read(self, name: str, start: int, external: int, room: int) -> None:
        """Write the keys of a step, of drafts behind them rubbish, and read what queries see.

        A connector writes those of `external` tokens from `start` on.
        """
        first, end = start + external, self._requests.by_name[name].num_computed_tokens
        if external:
            self._write(name, start, first, first)
        # A step reads the state behind the tokens before it, and may overwrite it.
        self._read(name, first, first, states_only=True)
        if end > first:
            self._write(name, first, end, room)
        for each in self._tables:
            computed = self._requests.by_name[each].num_computed_tokens
            self._read(each, first if each == name else computed, computed)

    def prefixes(self, name: str) -> list[int]:
        """Return the number of each prefix of a request."""
        return self._memory.prefixes(self._requests.by_name[name].token_ids)

    def _write(self, name: str, first: int, end: int, room: int) -> None:
        prefixes = self.prefixes(name)
        for number, table in enumerate(self._tables[name]):
            for position in self._layout.written(number, first, end, room):
                index, offset = self._layout.slot(number, position)
                block = table[index]
                key = self._layout.key(number, prefixes, position) if position < end else None
                if block == NULL or key == self._memory.at(block, offset):
                    continue
                if self._is_shared(block, name, number):
                    detail = f"block {block} of group {number}, position {position}"
                    raise WrongAnswerError(
                        "tables", "share a block that one request writes", detail
                    )
                self._memory.write(block, offset, key)

    def _is_shared(self, block: int, name: str, number: int) -> bool:
        """True if the block is in a table beside that of the request's group."""
        return any(
            block in table
            for each, tables in self._tables.items()
            for group, table in enumerate(tables)
            if (each, group) != (name, number)
        )

    def _read(self, name: str, first: int, end: int, *, states_only: bool = False) -> None:
        """Require of each key that queries from `first` on see that it is the request's."""
        prefixes = self.prefixes(name)
        for number, table in enumerate(self._tables[name]):
            if states_only and not self._layout.has_states(number):
                continue
            for position in self._layout.seen(number, first, end):
                index, offset = self._layout.slot(number, position)
                block, key = table[index], self._layout.key(number, prefixes, position)
                if self._memory.at(block, offset) != key:
                    detail = f"{name}: block {block} of group {number}, position {position}"
                    text = "name a block without the request's keys"
                    raise WrongAnswerError("tables", text, detail)
