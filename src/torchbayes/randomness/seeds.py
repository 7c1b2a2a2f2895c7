"""Seeds: independent streams of random numbers that depend only on integers.

Every random number is a function of (purpose, seed, step), or of some other numbering of the calls. A run can
therefore be resumed without storing generator states, and a member draws the same numbers wherever and with whatever
others it runs. Draws for one purpose are independent of those for another under the same seed, and of those of users
after `torch.manual_seed`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch

from torchbayes.checks import as_seed, whole
from torchbayes.randomness.generators import Drawn, drawing_under

_MASK, _STEP = (1 << 64) - 1, 0x9E3779B97F4A7C15
_FEW = 16  # numbers below which a loop takes less time than an array


@enum.unique
class Purpose(enum.IntEnum):
    """What random numbers are for: all streams of the library, each used at one place of the source.

    The number of a removed purpose is never reused, so that the others keep their streams. Missing numbers from 72 to
    89, and 202 and 203, belong to the distribution torchbayes-experiments.
    """

    # a fit
    MEMBER = 1  # seeds of the members after the first
    INITIALISATION = 2
    FACTORY = 3  # the network that a factory makes for inspection
    ORDER = 4  # of the rows in an epoch
    WORKERS = 5  # of a loader
    STEP = 6  # seeds of what a network draws in a step
    SHARE = 7  # the same, on ranks that split the rows
    CHUNK = 58  # the same, for rows of a batch that go through the network after others
    DROPOUT = 8  # what the network draws
    TRIAL = 9  # whether it draws anything
    WRITING = 10  # what it draws while its writes are detected
    HELD_OUT = 29  # rows left out of a first run, which chooses settings
    # samplers
    MOMENTUM = 11
    ACCEPT = 12
    JITTER = 13
    RANDOM_WALK = 14
    LANGEVIN = 15
    TREE = 16
    FIRST_STEP = 17  # momentum by which the first step size is found
    DIFFUSION = 18  # of stochastic-gradient samplers
    THERMOSTAT = 19  # momentum that SGNHT starts with
    DISPERSED = 20  # starts of chains that are given none
    HALVINGS = 30  # of a step size
    VELOCITY = 37  # drawn anew, of dynamics with noise in the velocity
    REFRESHMENT = 38  # noise in that velocity
    TRAJECTORY = 39  # number of its steps
    # variational methods
    VARIATIONAL = 110  # weights of a step
    FACTOR = 111  # of the covariance that a low-rank family starts with
    LAYER_WEIGHTS = 112  # weights that no layer takes as a distribution, in a pass by layers
    LAYER_OUTPUTS = 113  # noise of a layer
    LAYER_SIGNS = 114  # of flipout
    LAYER_MASKS = 115  # what the network draws in such a pass
    LAYER_TRIAL = 116  # while its layers are found
    VARIATIONAL_MASKS = 117  # what the network draws at weights of a step
    ADAPTER = 118  # noise around an adapter, the same for every standard deviation
    # priors, posteriors and predictives
    PRIOR = 21
    DISTRIBUTION = 22  # a prior that is a torch Distribution
    GAUSSIAN = 23  # weights of a Gaussian posterior
    SUBSAMPLE = 24  # of the draws of a chain
    TARGETS = 25  # of a predictive
    EXPORT = 245  # seeds of targets that arviz is given
    TOKENS = 161  # the same, one after the other
    OUTPUTS = 26  # of a linearised network
    THOMPSON = 230  # which of drawn functions is held fixed
    SUBSPACE = 27  # its directions
    RESAMPLES = 28  # weights of the rows of an evaluation
    # curvature
    PIECE = 31  # seeds of the rows of one piece
    FISHER = 32  # targets drawn from the model
    DIRECTIONS = 33  # initial ones of a low rank
    LAYERS = 34  # column of gradients for testing layers
    CALLS = 35  # column of gradients for testing the order of calls
    LINEARITY = 36  # weights at which a network must be linear
    SKETCH = 40  # directions of a long side of Kronecker factors
    # evidence
    MOVE_MOMENTUM = 41
    MOVE_JITTER = 42
    MOVE_ACCEPT = 43
    PILOT_START = 44
    PILOT_MOVES = 45
    PILOT_RESAMPLING = 46
    ANNEALING_PILOT = 47
    ANNEALING_START = 48
    ANNEALING_MOVES = 49
    REVERSE_MOVES = 50
    INTEGRATION_PILOT = 51
    INTEGRATION_PRIOR = 52
    INTEGRATION_START = 53
    INTEGRATION_CHAINS = 54
    MONTE_CARLO = 55
    # data
    SUBSET = 61  # of the training rows
    FOREIGN = 62  # out-of-distribution images
    CORRUPTION = 63
    # comparisons
    DISTANCE = 71  # targets compared with those of the reference
    FOREIGN_RESAMPLES = 85
    READING = 204  # of rows that are drawn anew whenever they are read
    GRADIENT_NOISE = 205
    UNSEEN_ROWS = 206
    # particles
    PRIOR_FUNCTIONS = 95  # weights of networks whose functions give the score of the prior
    PRIOR_NETWORK = 96  # what these draw
    EXTRA = 98  # rows beside those of a batch
    APART = 97  # starts of particles that were given a single one
    # variational inference
    WEIGHT_NOISE = 90  # of the draws that a step of IVON takes its gradients at
    NETWORK_AT_DRAW = 91  # seeds of what a network draws at each of them
    # dropout and batch norm of drawn functions
    MASKS = 100  # of one call of dropout in a forward pass
    MASKED_DRAW = 101  # seeds of the draws
    MINIBATCH = 102  # whose statistics a draw has
    CONCRETE = 103  # masks for learning dropout rates
    # flows
    FLOW_NOISE = 120  # of the draws of a step
    FLOW_START = 121  # parameters that a flow starts with
    FLOW_MAPS = 122  # weights with which networks of maps are made, but never run
    # last layers
    LAST_LAYER_FACTOR = 130  # of the covariance of a last layer that a low rank starts with
    LAST_LAYER_MASKS = 131  # what the network draws in a step
    LAST_LAYER = 132  # inputs and weights by which a linear layer is recognised
    # adversarial training
    ATTACK = 133  # what the network draws where inputs are differentiated
    GRADIENT_TRIAL = 134  # what the network draws in a test of which weights have a gradient
    # elliptical slices and curves
    SLICE_ELLIPSE = 135  # the second point of an ellipse
    SLICE_LEVEL = 136  # height of a slice, and the first angle on it
    SLICE_ANGLE = 137  # angles after the first
    CURVE_POSITION = 138  # where on a curve a step takes its gradient
    CURVE_DRAW = 139  # where draws are on a curve
    # simplexes
    SIMPLEX_START = 190  # where vertices start beside a mode
    SIMPLEX_POSITION = 191  # where in a simplex a step takes its gradient
    SIMPLEX_DRAW = 192  # where draws are in a simplex
    # geometry
    MATCHING = 140  # order of the groups in a sweep
    PERMUTED = 141  # units at random
    TRACED = 142  # made-up inputs of a network that is watched without data
    SPECTRUM = 145  # signs that probe a spectrum
    TRACE = 146  # signs of Hutch++
    BASIN = 147  # directions from a minimum
    COEFFICIENT = 148  # chains around a minimum
    COEFFICIENT_ROWS = 149  # minibatches that they see
    COEFFICIENT_START = 195  # chains that end where these start
    COEFFICIENT_HALF = 196  # chains of steps of half the size
    STIFFNESS = 150  # probe of the largest curvature
    SURFACE = 151  # directions of a plane
    CURVED = 152  # first vector of an iteration
    INTERIOR = 193  # points in a simplex
    # compression
    UNIT_NOISE = 194  # replaces units in a test of which are constants
    # conformal sets
    SETS_CALIBRATION = 210  # uniform numbers of the rows that calibrate
    SETS = 211  # those of new rows
    CALIBRATING = 212  # rows of an estimator that calibrate, and are not fitted
    BASELINES = 213  # rows that predictors without a network learn from
    SHUFFLED_COLUMN = 214  # other values of a column, to see how much it matters
    BETS = 215  # order of held-out rows whose losses are bet on
    # active learning
    FIRST_ROWS = 221  # that it begins with
    RANDOM_ROWS = 223  # taken at random, to compare with
    TIES = 240  # order of rows of equal scores
    AIMS = 241  # rows of the pool where predictions matter, if none are given
    LABELS = 242  # of a batch, drawn from the average
    LABELS_HELD_OUT = 244  # rows of a file with labels that are for the numbers
    # distillation
    TRANSFER = 260  # mixtures of rows at which a teacher is asked
    # sites
    SITE_LINEARITY = 180  # weights at which a network must be linear in them
    # flat regions
    PART = 155  # seeds of what a network draws for a part of a batch
    FLAT_NOISE = 156  # of the draws that a step of BSAM takes its first gradients at
    FLAT_MASKS = 157  # seeds of what a network draws there
    # functions of priors
    PRIOR_PREDICTIVE = 171  # seeds of the blocks of drawn weights
    PRIOR_MATCHING = 172  # draws for matching a prior to a Gaussian process
    # sequences of tasks
    TASK = 200  # seeds of the fits after the first
    CORESET = 201  # rows set aside
    # adapters of language models
    QUESTIONS = 220  # held out for the numbers
    POOL = 222  # of which a round of active learning scores some
    # certificates
    UNIFORM_RANKS = 290  # samples that ranks are compared with
    RANK_RESAMPLES = 291  # ranks drawn again
    SIMULATION = 292  # seeds of true networks, their targets and the fits of these
    RANK_TIES = 293  # places among equal draws
    PROBES = 294  # projections of outputs
    FOLDS = 295  # rows that are left out together
    FOLD_SEEDS = 297  # seeds of the fits without them
    SET_LEVELS = 298  # of classes, within the probability of the last of a set
    OTHER_SEEDS = 296  # seeds of the fits that are compared


_Hash = TypeVar("_Hash", int, np.ndarray)


def mix(purpose: int, *integers: int) -> int:
    """Return a well-mixed 63-bit seed of a purpose and integers (SplitMix64 finaliser, Steele et al. 2014)."""
    value = 0
    for integer in (purpose, *integers):
        value = _stirred((value + (integer & _MASK) + _STEP) & _MASK)
    return value >> 1


def numbered(purpose: Purpose, *integers: int, count: int) -> list[int]:
    """Return `mix` of a purpose, integers, and each number from 0 to `count` − 1."""
    if count < _FEW:
        return [mix(purpose, *integers, number) for number in range(count)]
    begun = np.zeros(1, dtype=np.uint64)
    return (continued(begun, purpose, *(integer & _MASK for integer in integers), count=count)[0] >> 1).tolist()


def streams(purpose: Purpose, seeds: Sequence[int], *integers: int) -> np.ndarray:
    """Return hashes of a purpose, each of many seeds, and integers, uint64 (M,), which `continued` extends.

    Half of such a hash is `mix` of the same integers.
    """
    return continued(_begun(purpose, tuple(seeds)), *integers)


def continued(streams_M: np.ndarray, *integers: int, count: int | None = None) -> np.ndarray:
    """Return hashes, uint64 (M,), of the content of other hashes and of more integers.

    With `count`, the numbers 0 to count − 1 follow as the last integer, and the result is (M, count).
    """
    value = streams_M
    for integer in integers:
        value = _stirred(value + ((integer + _STEP) & _MASK))
    if count is not None:
        value = _stirred(value[:, None] + (np.arange(count, dtype=np.uint64) + _STEP))
    return value


def fractions(seed: int, shape: Sequence[int]) -> np.ndarray:
    """Return float64 numbers uniform on [0, 1), multiples of 2⁻⁵³, each a hash of the seed and of its position.

    The seed is one of `mix`. A smaller array is a corner of a larger one.
    """
    value = np.array([_stirred((seed + _STEP) & _MASK)], dtype=np.uint64)
    for size in shape:
        value = _stirred(value[..., None] + (np.arange(size, dtype=np.uint64) + _STEP))
    return (value[0] >> 11) * 2.0**-53


@lru_cache(maxsize=16)
def _begun(purpose: Purpose, seeds: tuple[int, ...]) -> np.ndarray:
    """Return the hash of a purpose and each seed; cached, because seeds are the same at every step."""
    first = np.array([seed & _MASK for seed in seeds], dtype=np.uint64) + _STEP
    return _stirred(first + _stirred((purpose + _STEP) & _MASK))


def _stirred(value: _Hash) -> _Hash:
    """Return the finaliser of an integer below 2⁶⁴, or of an array of them, whose overflow wraps around."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def member_seeds(seed: int, members: int) -> list[int]:
    """Return the seeds of M members; the first is `seed` itself.

    Member m of a fit with `seed` equals the fit of one member with `member_seeds(seed, M)[m]`.

    Args:
        seed: seed of the whole fit.
        members: M.

    Returns:
        M integers.

    Raises:
        ValueError: if the seed is not a whole number, or M is not one of at least 1.
    """
    seed, members = as_seed(seed), whole("members", members)
    return [seed, *(mix(Purpose.MEMBER, seed, member) for member in range(1, members))]


def generator(purpose: int, *integers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a new generator seeded by a purpose and integers."""
    return torch.Generator(device=device).manual_seed(mix(purpose, *integers))


def seeded(purpose: Purpose, *integers: int, device: torch.device | str = "cpu") -> AbstractContextManager[Drawn]:
    """Return a context in which code draws from PyTorch's default generators under a seed, without moving them.

    It is needed where there is no generator argument: initialisers, dropout and Distributions.
    """
    return drawing_under(mix(purpose, *integers), device)
