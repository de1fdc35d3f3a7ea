"""Operations of SPEC.md section 13: the persistent batch of model runner V2."""
