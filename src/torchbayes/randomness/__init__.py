"""Streams of random numbers, which are functions only of a purpose, a seed and a step."""
