"""Entries of variational methods."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchbayes.catalogue.entries import Look, MethodEntry
from torchbayes.methods.variational.batch_norm import MCBatchNorm
from torchbayes.methods.variational.concrete import ConcreteDropout
from torchbayes.methods.variational.dropout import MCDropout

if TYPE_CHECKING:
    from torchbayes.catalogue.usual import Usual


def _dropout(usual: Usual) -> MCDropout:
    b = usual.budget
    return MCDropout(epochs=b.epochs, batch_size=b.batch_size, optimizer=b.optimizer, plan="loop")


def _learned(usual: Usual) -> ConcreteDropout:
    b = usual.budget
    return ConcreteDropout(epochs=b.epochs, batch_size=b.batch_size, optimizer=b.optimizer)


VARIATIONAL = (
    MethodEntry(
        "mc_dropout",
        "a network trained with its dropout on, which stays on for predictions",
        "torchbayes.methods.variational.dropout:MCDropout",
        label="MC dropout",
        usual=_dropout,
        look=Look("#b5651d", "X"),
        predicts="drawn",
        parts="dropout",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "concrete_dropout",
        "MC dropout that learns the rate of each dropout layer",
        "torchbayes.methods.variational.concrete:ConcreteDropout",
        label="concrete dropout",
        usual=_learned,
        look=Look("#8f4f2f", "<"),
        predicts="drawn",
        parts="dropout",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "mc_batch_norm",
        "the single network with batch norm, by the statistics of random training minibatches",
        "torchbayes.methods.variational.batch_norm:MCBatchNorm",
        label="MC batch norm",
        usual=lambda usual: MCBatchNorm(usual.budget.batch_size),
        look=Look("#6b8e23", "d"),
        start="single",
        predicts="drawn",
        parts="batch norm",
        cost="The single network, a forward pass for each minibatch, and one for each function drawn.",
    ),
)
