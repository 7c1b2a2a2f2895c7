"""Markov chains on minibatches: SGLD, SGHMC, SGNHT, and their cycles."""
