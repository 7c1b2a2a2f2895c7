"""The parts of runs by name: data, networks, likelihoods, priors, methods, and their usual settings."""
