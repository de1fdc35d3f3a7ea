"""Where vLLM says which release it is."""

__version__ = "0.11.2+cpu"
