"""Seeds of what experiments draw themselves: streams beside those of the library."""

import enum

from torchbayes.randomness.seeds import generator, mix

__all__ = ["Purpose", "generator", "mix"]


@enum.unique
class Purpose(enum.IntEnum):
    """What random numbers of experiments are for. No purpose of the library has one of these numbers."""

    SHUFFLE = 72  # of labels
    PROCESS_ROWS = 73
    PROBLEM_ROWS = 74
    PROBLEM_LABELS = 75
    TEST_ROWS = 76
    ARRANGEMENT = 77  # of hidden units
    AGREEMENT_PROBLEM = 78
    AGREEMENT_DATA = 79
    AGREEMENT_CASE = 80
    CLIMB = 81
    GRID = 82
    INDEPENDENT = 84  # draws of an ideal sampler
    CURVE = 86  # training rows of the regression of Blundell et al.
    POISON = 87  # which rows have wrong labels, and which ones
    SHIFT = 88  # noise in test images
    LAW_ROWS = 89  # data of a law that is known
    HELD_OUT = 90  # which rows are held out and which are for testing
    PIXELS = 202  # their order in a task
    TASK_ROWS = 203  # training rows of a task
    SURROGATE_PROBLEM = 207  # weights of a network that is optimised
    SURROGATE_ROUND = 208  # a round of Bayesian optimisation
    EQUATION = 209  # sensors of a differential equation, and their noise
    BASE_TEXTS = 204  # texts of a language model, their order and which are held out
    ASKED = 205  # questions of a problem, and words of other texts in them
