"""What priors and models say before the data, and what is left of it after."""
