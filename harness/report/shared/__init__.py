"""Words, numbers and files that every form of the report uses."""
