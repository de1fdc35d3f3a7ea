"""The backend of a release whose metadata is made by its builder."""

from __future__ import annotations


class AttentionBackend:
    pass


class AttentionMetadata:
    pass
