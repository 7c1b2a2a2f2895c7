"""Markov chains on all the data: random walk, MALA, HMC, NUTS, and what is known to be wrong with chains."""
