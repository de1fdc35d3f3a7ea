"""Operations of SPEC.md section 16: the manager of a KV cache."""
