"""A run as JSON, JUnit XML and Markdown."""
