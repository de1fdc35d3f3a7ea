"""attnproof: proves that attention-metadata backends compute what SPEC.md says."""

__version__ = "0.1.0"
