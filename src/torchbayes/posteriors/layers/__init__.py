"""Posteriors over the randomness of layers: dropout masks, and statistics of batch norms."""
