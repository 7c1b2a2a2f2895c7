"""The evidence of networks, and Laplace posteriors."""
