"""Which hidden units of a network can change places, and the orders that bring two networks together."""
