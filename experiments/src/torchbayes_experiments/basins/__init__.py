"""Basins of the loss: their width, the paths between them, and averages within and over them."""
