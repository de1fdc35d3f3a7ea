"""Verification of attention-metadata backends of LLM-serving engines.

The packages `reference`, `optimized` and `harness` are links to the folders of those names at
the top of the repository.
"""

__version__ = "0.1.0"
