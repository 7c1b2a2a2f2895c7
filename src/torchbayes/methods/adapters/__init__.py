"""Methods for low-rank adapters of networks that are trained already."""
