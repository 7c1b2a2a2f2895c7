"""Posteriors whose draws are functions of normals: normalising flows, and normals with random multipliers."""
