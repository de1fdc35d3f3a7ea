"""Operations of SPEC.md section 15: page tables as CSR, slots handed out, token pools."""
