"""Rows of data: one batch, and sources that yield many."""
