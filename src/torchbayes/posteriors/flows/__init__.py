"""Posteriors whose draws are functions of normal numbers: normalising flows, and normals with random multipliers."""
