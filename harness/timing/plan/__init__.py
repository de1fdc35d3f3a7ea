"""Selection of the operations, cases and engine steps to time."""
