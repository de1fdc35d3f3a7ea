"""Where vLLM says which release it is."""

__version__ = "0.32.0+cpu"
