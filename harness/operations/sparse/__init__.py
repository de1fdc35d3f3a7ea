"""Operations of sparse and latent attention (SPEC.md section 22)."""
