"""The XFormers backend (SPEC.md section 8)."""
