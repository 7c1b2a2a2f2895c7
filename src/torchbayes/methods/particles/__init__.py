"""Methods whose members see each other: SVGD and repulsive ensembles, with their kernels and score estimators."""
