"""Readers of public LLM-serving traces."""
