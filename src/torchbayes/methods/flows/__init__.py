"""Variational methods whose distributions are not normal: normalising flows, and multiplicative normalising flows."""
