"""Descents that look for flat regions of the loss: sharpness-aware minimisation, and its Bayesian form."""
