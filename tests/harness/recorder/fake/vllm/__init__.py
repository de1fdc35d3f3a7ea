"""Classes with the names and signatures of vLLM 0.32 that the recorder hooks."""

__version__ = "0.32.0"
