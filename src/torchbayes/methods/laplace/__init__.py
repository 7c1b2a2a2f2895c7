"""Laplace: Gaussians at modes, their prior and noise chosen by the evidence, and the weights that matter most."""
