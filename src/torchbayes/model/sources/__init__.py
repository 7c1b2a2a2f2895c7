"""Training data as a model takes them: sources of rows, checked on their first batch."""
