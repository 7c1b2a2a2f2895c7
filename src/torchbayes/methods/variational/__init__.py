"""Variational inference: a parametric distribution over the weights, fitted by maximising the evidence lower bound."""
