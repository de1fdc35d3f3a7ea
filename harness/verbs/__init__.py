"""The verbs of the command line, one file per verb; `options` declares their options."""
