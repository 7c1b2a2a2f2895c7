"""Curves in weight space: their shapes, and the posteriors along them."""
