"""Variational methods: a family of distributions, and the member of it that is closest to the posterior."""
