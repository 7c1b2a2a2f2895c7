"""What runs are made of, by name: data, networks, likelihoods, priors, methods, and settings that are usual."""
