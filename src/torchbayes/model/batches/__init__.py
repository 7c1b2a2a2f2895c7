"""Rows of data: one batch, and loaders that yield many."""
