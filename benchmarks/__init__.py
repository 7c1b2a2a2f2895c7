"""Timed cases against floors and peers on the same work in one run, reported as ratios of medians."""
