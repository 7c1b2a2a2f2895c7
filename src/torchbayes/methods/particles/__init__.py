"""Methods whose members interact: SVGD and repulsive ensembles, with their kernels and score estimators."""
