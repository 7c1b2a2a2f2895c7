"""Markov chains on minibatches: SGLD, SGHMC, SGNHT, SMILE, and their cycles."""
