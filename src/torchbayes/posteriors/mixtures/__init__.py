"""Mixtures of posteriors."""
