"""Operations on cache blocks and the cache layout (SPEC.md section 7)."""
