"""Operations on a whole batch: splits, padding, virtual batches (SPEC.md sections 1, 2, 4, 6)."""
