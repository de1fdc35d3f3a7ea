"""Where vLLM says which release it is."""

__version__ = "0.10.2+cpu"
