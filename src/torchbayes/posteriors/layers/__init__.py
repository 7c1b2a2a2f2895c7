"""Posteriors over what layers do at random: dropout masks, and statistics of batch norms."""
