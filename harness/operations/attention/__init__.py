"""Operations on the paged cache: cache write and attention (SPEC.md section 8)."""
