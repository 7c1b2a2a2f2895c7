"""Where to evaluate next: networks as surrogates of Bayesian optimisation."""
