"""Training data for a model: sources of rows, checked on their first batch."""
