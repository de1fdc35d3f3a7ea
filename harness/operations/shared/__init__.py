"""Parts that operations of several rooms use."""
