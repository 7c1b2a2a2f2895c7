"""Methods that approximate the likelihood site by site: expectation propagation and probabilistic backpropagation."""
