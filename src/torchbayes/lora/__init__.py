"""Adapters of language models by one call."""
