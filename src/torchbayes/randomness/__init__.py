"""Streams of random numbers: functions of a purpose, a seed and a step, and of nothing else."""
