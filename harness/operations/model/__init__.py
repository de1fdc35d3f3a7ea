"""Operations that read model and layer settings (SPEC.md sections 1 and 7)."""
