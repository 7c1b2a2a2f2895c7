"""Labels of sequences of tokens: with which of its outputs a network compares each, found out by asking it.

Causal language models of Hugging Face are given `labels=input_ids` and compare the output at place t with the label at
place t + 1 within their own loss; models that classify tokens, and some decoders, compare it with the label at place t.
No name tells them apart, so the network's loss is asked: does it depend on the first label?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchbayes.model.batch import Batch, rows_of, unshared
from torchbayes.model.network import arguments

IGNORED = -100  # the label that Hugging Face leaves out


class Labels:
    """Puts labels of tokens at the places of the outputs that they are compared with."""

    def __init__(self, module: nn.Module) -> None:
        """Keep the network; it is asked at the first batch of labelled tokens."""
        self._module = module
        self._later: bool | None = None

    def placed(self, batch: Batch, ignore_index: int | None) -> Batch:
        """Return the batch, its labels moved one place forward where the network compares them so.

        Args:
            batch: rows; if they are not integers (B, T) for tokens (B, T), nothing is done.
            ignore_index: the label that the likelihood leaves out, for the last place, which has none; None if it has
                no such label.

        Returns:
            The batch.

        Raises:
            ValueError: if labels must be moved and the likelihood cannot leave the last place out, or if the labels
                are the tokens themselves and the network does not say how it compares them.
        """
        tokens = _tokens(batch)
        if tokens is None:
            return batch
        if self._later is None:
            self._later = _compares_later(self._module, batch)
        if self._later is None and torch.equal(tokens.where(batch.targets >= 0, batch.targets), batch.targets):
            raise ValueError(
                "the labels are the input tokens themselves, so the network would learn to copy them. Give Model "
                "`batch=`, a function that returns (inputs, targets), such as tokens[:, :-1] and tokens[:, 1:]."
            )
        if not self._later:
            return batch
        if ignore_index is None:
            raise ValueError(
                "the network is a causal language model: its outputs are compared with the labels one place later, and "
                f"the last one with none. Use likelihoods.Categorical(ignore_index={IGNORED})."
            )
        return batch._replace(targets=F.pad(batch.targets[:, 1:], (0, 1), value=ignore_index))


def _tokens(batch: Batch) -> Tensor | None:
    """Return the tokens of labelled sequences: integers of the shape of the targets, (B, T) with T > 1."""
    targets, inputs = batch.targets, batch.inputs
    if not isinstance(targets, Tensor) or targets.ndim != 2 or targets.shape[1] < 2 or targets.is_floating_point():
        return None
    named = [inputs["input_ids"]] if isinstance(inputs, Mapping) and "input_ids" in inputs else []
    found = (t for t in (*named, *pytree.tree_leaves(inputs)) if isinstance(t, Tensor) and t.shape == targets.shape)
    return next((t for t in found if not t.is_floating_point()), None)


def _compares_later(module: nn.Module, batch: Batch) -> bool | None:
    """Return whether a network's own loss compares outputs with the labels one place later; None if it does not say.

    Such a loss depends on the last label and not on the first.
    """
    args, kwargs = arguments(unshared(rows_of(batch.inputs, slice(2))))
    labels = batch.targets[:2].clamp_min(0)
    losses = []
    for place in (None, 0, -1):
        changed = labels.clone()
        if place is not None:
            changed[:, place] = (labels[:, place] == 0).to(labels)
        try:
            with torch.no_grad():
                made: Any = module(*args, **kwargs, labels=changed)
        except Exception:  # whatever a network raises that takes no labels
            return None
        loss = made.get("loss") if isinstance(made, Mapping) else getattr(made, "loss", None)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not torch.isfinite(loss):
            return None
        losses.append(float(loss))
    itself, first, last = losses
    return None if itself == last else itself == first
