"""Operations that map tokens to cache slots (SPEC.md section 5)."""
