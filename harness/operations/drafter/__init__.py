"""Operations on the batches of a drafter (SPEC.md section 14)."""
