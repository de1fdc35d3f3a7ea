"""Operations of fast prefill for KV sharing (SPEC.md section 6)."""
