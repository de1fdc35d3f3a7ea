"""Adapters: engines of other projects as candidates."""
