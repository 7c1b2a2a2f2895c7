"""Labels of token sequences: which output a network compares with each label, found out by probing its loss.

Causal language models of Hugging Face take `labels=input_ids`, and their own loss compares the output at place t with
the label at place t + 1. Models that classify tokens, and some decoders, compare it with the label at place t. No
attribute tells them apart, so the network's loss is probed: does it depend on the first label?

Labels that are already one place ahead of the tokens, as in (tokens[:, :-1], tokens[:, 1:]), are recognised by their
values, batch by batch, and stay in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.utils import _pytree as pytree

from torchbayes.checks import SettingError
from torchbayes.model.batches.batch import Batch, arguments, copied, rows_of
from torchbayes.model.likelihoods import Likelihood
from torchbayes.model.likelihoods.weighted import map_values, unweighted
from torchbayes.model.network import Network

IGNORED = -100  # the label that Hugging Face ignores


class Labels:
    """Aligns labels of tokens with the outputs that they are compared with."""

    def __init__(self, network: Network) -> None:
        """Keep the network; it is probed once, at the first batch of labelled tokens."""
        self._network = network
        self._asked: tuple[bool | None] | None = None

    def placed(self, batch: Batch, likelihood: Likelihood) -> Batch:
        """Return the batch, its labels moved one place forward if the network compares them so.

        Labels stay in place unless they are integers (B, T) for tokens (B, T), and if they are already one place ahead.
        Labels of a weighted likelihood are those of its pairs (labels, weights). The likelihood's `ignore_index` fills
        the last place, which has no next token. It raises ValueError if there is none, or if the labels are the tokens
        and the network's loss does not show how it compares them.
        """
        ignored = getattr(unweighted(likelihood), "ignore_index", None)
        place = partial(self._placed, inputs=batch.inputs, ignored=ignored)
        return batch._replace(targets=map_values(place, likelihood, batch.targets))

    def check(self, batch: Batch, likelihood: Likelihood) -> None:
        """Raise SettingError if labels are the tokens themselves and the network compares them one place later.

        The batch may be made by hand, and its labels should be aligned already.
        """
        ignored = getattr(unweighted(likelihood), "ignore_index", None)

        def one(labels: Any) -> Any:
            tokens = _tokens(batch.inputs, labels)
            if tokens is None:
                return labels
            same, ahead = _seen(labels, tokens, ignored)
            if same and not ahead and self._compares_later(batch.inputs, labels):
                raise SettingError(
                    "the labels of this batch are the input tokens themselves, which the network's outputs are not "
                    "compared with but with the tokens behind them. Make it by model.unpack((inputs, labels)), which "
                    "moves the labels."
                )
            return labels

        map_values(one, likelihood, batch.targets)

    def _compares_later(self, inputs: Any, labels: Tensor) -> bool | None:
        """Return whether the network compares outputs with labels one place later; it is probed once."""
        if self._asked is None:
            self._asked = (_compares_later(self._network, inputs, labels),)
        return self._asked[0]

    def _placed(self, labels: Any, inputs: Any, ignored: int | None) -> Any:
        tokens = _tokens(inputs, labels)
        if tokens is None:
            return labels
        later, (same, ahead) = self._compares_later(inputs, labels), _seen(labels, tokens, ignored)
        if later is None and same and not ahead:
            raise ValueError(
                "the labels are the input tokens themselves, so the network would learn to copy them. Give Model "
                "`batch=`, a function that returns (inputs, targets), such as tokens[:, :-1] and tokens[:, 1:]."
            )
        # labels that fit both readings, as equal tokens do, are correct either way
        if not later or (ahead is not False and same is False):
            return labels
        if ignored is None:
            raise ValueError(
                "the network is a causal language model: its outputs are compared with the labels one place later, and "
                f"the last one with none. Use likelihoods.Categorical(ignore_index={IGNORED})."
            )
        return F.pad(labels[:, 1:], (0, 1), value=ignored)


def _seen(labels: Tensor, tokens: Tensor, ignored: int | None) -> tuple[bool | None, bool | None]:
    """Return whether labels equal the tokens at the same places, and those one place ahead; None if no label counts."""
    counts = (labels >= 0) if ignored is None else (labels >= 0) & (labels != ignored)
    # the token after the last label of a row may be padding, so a label is compared where the next one counts too
    ahead = _agree(labels[:, :-1], tokens[:, 1:], counts[:, :-1] & counts[:, 1:])
    return _agree(labels, tokens, counts), ahead


def _agree(labels: Tensor, tokens: Tensor, counts: Tensor) -> bool | None:
    """Return whether labels equal tokens wherever they count; None if none counts."""
    return bool(((labels == tokens) | ~counts).all()) if counts.any() else None


def _tokens(inputs: Any, targets: Any) -> Tensor | None:
    """Return the tokens of labelled sequences: integers of the shape of the targets, (B, T) with T > 1."""
    if not isinstance(targets, Tensor) or targets.ndim != 2 or targets.shape[1] < 2 or targets.is_floating_point():
        return None
    named = [inputs["input_ids"]] if isinstance(inputs, Mapping) and "input_ids" in inputs else []
    candidates = (
        t for t in (*named, *pytree.tree_leaves(inputs)) if isinstance(t, Tensor) and t.shape == targets.shape
    )
    return next((t for t in candidates if not t.is_floating_point()), None)


def _compares_later(network: Network, inputs: Any, targets: Tensor) -> bool | None:
    """Return whether a network's own loss compares outputs with the labels one place later; None if it has no loss.

    Such a loss depends on the last label and not on the first.
    """
    args, kwargs = arguments(copied(rows_of(inputs, slice(2))))
    labels = targets[:2].clamp_min(0)
    state, losses = {**network.precision.cast(network.mask.fill(network.initial)), **network.buffers}, []
    for place in (None, 0, -1):
        changed = labels.clone()
        if place is not None:
            changed[:, place] = (labels[:, place] == 0).to(labels)
        try:
            with torch.no_grad():
                made: Any = functional_call(network.module, state, args, {**kwargs, "labels": changed})
        except Exception:  # a network that takes no labels may raise anything
            return None
        loss = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not torch.isfinite(loss):
            return None
        losses.append(float(loss))
    itself, first, last = losses
    return None if itself == last else itself == first
