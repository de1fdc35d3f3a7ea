"""Definitions: what an operation's arguments and results are, said once in its signature."""

__all__: list[str] = []
