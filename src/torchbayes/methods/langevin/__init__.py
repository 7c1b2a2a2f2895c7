"""Dynamics with noise in the velocity on all the data: microcanonical and underdamped Langevin, adjusted or not."""
