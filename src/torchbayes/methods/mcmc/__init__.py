"""Markov chains on all the data: random walk, MALA, HMC, NUTS and elliptical slice sampling."""
