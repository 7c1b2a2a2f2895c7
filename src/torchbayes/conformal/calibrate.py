"""Split conformal prediction: intervals and sets that hold as many targets as they say, whatever the model.

Calibration rows that the fit has not seen are scored by how untypical their targets are, and a set of a new row holds
every target whose score is at most a threshold, the k-th smallest of theirs (`torchbayes.conformal.ranks`). If new rows
are exchangeable with them, it holds the target with the probability asked for: not in the model, and not only for many
rows. A better posterior gives smaller sets, and a worse one larger sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributions

from torchbayes.assess.evaluate import predictives
from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_kind, check_name, optional, seen
from torchbayes.conformal.classes import CLASS_SCORES, ClassScore
from torchbayes.conformal.conformal import Conformal
from torchbayes.conformal.groups import codes_of, names_of, weights_like
from torchbayes.conformal.numbers import CQR, NUMBER_SCORES, Forecast, NumberScore, numbers_like
from torchbayes.conformal.ranks import check_coverage
from torchbayes.conformal.scoring import Scored, row_scores
from torchbayes.model.likelihoods.quantiles import is_discrete
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import Source
