"""The batch that an engine keeps between steps (SPEC.md section 7)."""
