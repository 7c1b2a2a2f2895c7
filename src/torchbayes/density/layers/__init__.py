"""Layers that take their weights as distributions."""
