"""Gradients to low error of samplers, on targets of sampler-benchmarks."""
