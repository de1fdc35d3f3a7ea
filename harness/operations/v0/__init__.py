"""First-generation (V0) builders and graph state (SPEC.md section 7)."""
