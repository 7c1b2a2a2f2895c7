"""Whether a network already applies its likelihood's link: a softmax before a likelihood that takes logits.

This is read off the autograd graph of the outputs, so that chance plays no part: outputs that happen to lie between 0
and 1 are not taken for probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from torchbayes.model.likelihoods.binary import Bernoulli, Probit
from torchbayes.model.likelihoods.categorical import Categorical
from torchbayes.model.likelihoods.gaussian import HeteroscedasticGaussian
from torchbayes.model.likelihoods.poisson import Poisson
from torchbayes.model.likelihoods.protocol import Likelihood
from torchbayes.model.likelihoods.weighted import unweighted

# operations by their names in the graph
_PROBABILITIES = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
_POSITIVE = {"ExpBackward0": "exponential", "SoftplusBackward0": "softplus", "ReluBackward0": "ReLU"}
_KEEPING = {  # operations that only move or bound values: the search goes on behind them
    *("AliasBackward0", "CloneBackward0", "ExpandBackward0", "PermuteBackward0", "ReshapeAliasBackward0"),
    *("SliceBackward0", "SelectBackward0", "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "TBackward0"),
    *("ToCopyBackward0", "TransposeBackward0", "UnsafeViewBackward0", "UnsqueezeBackward0", "ViewBackward0"),
    *("AddBackward0", "ClampBackward0", "ClampBackward1", "ClampMinBackward0", "ClampMaxBackward0", "FlattenBackward0"),
}
_JOINING = {"CatBackward0", "StackBackward0"}
_NEAR = 1e-4


def applied_twice(likelihood: Likelihood, outputs: Tensor) -> str:
    """Return what is wrong if outputs have gone through a function that the likelihood applies itself; else "".

    Outputs are (B, ..., K). Only the library's own likelihoods are judged.
    """
    plain, node = unweighted(likelihood), outputs.grad_fn
    name = type(plain).__name__
    if type(plain) is Categorical:
        word = _last(node, _PROBABILITIES) or ("softmax" if _sum_to_one(outputs) else "")
        most = math.e / (math.e + outputs.shape[-1] - 1)
        effect = f"applies a softmax to them, so that no probability could exceed {most:.2f}"
        remedy = "Remove it; a log_softmax would do no harm."
    elif type(plain) in {Bernoulli, Probit}:
        word = _last(node, _PROBABILITIES)
        low, high = (0.5, 0.73) if type(plain) is Bernoulli else (0.5, 0.84)
        effect = f"makes probabilities of them, which could only lie between {low} and {high}"
        remedy = "Remove it."
    elif type(plain) is Poisson:
        word = _last(node, _POSITIVE)
        effect = "takes them for logarithms of rates, so that no rate could be below 1"
        remedy = "Remove it."
    elif type(plain) is HeteroscedasticGaussian:
        word = _last(_second(node), _POSITIVE)
        effect = "makes variances of the second half of them by a softplus, so that none could be below 0.69"
        remedy = "Remove it from that half."
    else:
        return ""
    return f"the outputs of the network come from a {word}, and likelihoods.{name} {effect}. {remedy}" if word else ""


def _last(node: Any, words: dict[str, str]) -> str:
    """Return the word of the operation that made a tensor, up to those that keep its values; else ""."""
    return next((words[each.name()] for each in _behind(node) if each.name() in words), "")


def _second(node: Any) -> Any:
    """Return the graph node of the last tensor that was joined to make the outputs; None if they were not joined."""
    return next((each.next_functions[-1][0] for each in _behind(node) if each.name() in _JOINING), None)


def _behind(node: Any) -> Iterator[Any]:
    """Yield a node of the graph, and those behind it as long as they only move or bound the values of one tensor."""
    while node is not None:
        yield node
        inputs = [before for before, _ in node.next_functions if before is not None]
        node = inputs[0] if node.name() in _KEEPING and len(inputs) == 1 else None


def _sum_to_one(outputs: Tensor) -> bool:
    """Return whether outputs are probabilities of classes at every place."""
    if outputs.shape[-1] < 2 or outputs.numel() == outputs.shape[-1]:
        return False
    return bool((outputs >= 0).all() & ((outputs.sum(-1) - 1).abs() < _NEAR).all())
