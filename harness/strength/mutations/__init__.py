"""Mutations by family of operations; `attnproof.harness.strength.catalogue` collects them."""
