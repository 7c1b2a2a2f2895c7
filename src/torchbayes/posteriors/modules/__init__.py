"""Posteriors as plain modules, for use without the library: the average of drawn networks, and their base class."""
