"""Module that needs packages which its release installs and the adapter does not."""

raise ModuleNotFoundError("No module named 'compressed_tensors'", name="compressed_tensors")
