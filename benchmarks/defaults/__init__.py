"""Every method with no settings but the network, on tables and images that nothing was tuned to."""
