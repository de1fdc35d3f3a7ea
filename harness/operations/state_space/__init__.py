"""Operations of state-space layers (SPEC.md section 17)."""
