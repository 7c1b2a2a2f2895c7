"""Laplace: Gaussians at modes, their prior and noise chosen by the evidence, and subnetworks of important weights."""
