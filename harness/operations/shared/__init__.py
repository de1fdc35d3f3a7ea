"""Parts that operations of several families use."""
