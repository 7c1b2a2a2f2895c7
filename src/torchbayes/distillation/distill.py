"""distill: S functions of a posterior into one network, which says at once what their average says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_choice, check_counts, check_kind, optional
from torchbayes.distillation.heads import Head, NumbersHead, head_of
from torchbayes.distillation.networks import last_of, size_of
from torchbayes.distillation.student import Build, Student, model_of, student_network
from torchbayes.distillation.transfer import can_mix, inputs_of, with_mixtures
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.predictive.predict import Source, as_source
from torchbayes.selection import fit

_MIXTURES = 4  # of each row
_FEW, _HELD_OUT = 2500, 500  # rows below which the teacher is asked at others, to hold out; and at how many
_ROWS = 1024
_HEADS = ("auto", "dirichlet", "gaussian")


@undisturbed
@explained()
def distill(
    posterior: Posterior | Functions | Source,
    inputs: Any,
    network: nn.Module | Callable[[], nn.Module] | None = None,
    *,
    head: Literal["auto", "dirichlet", "gaussian"] = "auto",
    method: MAP | None = None,
    mixtures: int | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> Student:
    """Return one network that repeats S functions: their mean, and what they say of their own uncertainty.

    It is trained to give, at each of the inputs, the teacher's mean and mutual information (classes), or its mean,
    noise and variance of the mean (numbers). The teacher is taken as `predict` gives it with these draws, so that a
    student of five functions has the disagreement of five. A student speaks of one input at a time: it has no
    functions, and no correlation between inputs.

    Args:
        posterior: the teacher: a posterior, functions drawn from one, or a closed form such as `Linearised` that says
            more than one function does.
        inputs: at which the teacher is asked, without targets: as for `predict`, or a Dataset. Training inputs serve,
            and more is better: the student knows the teacher only where it asked.
        network: of the student, with the outputs that its head takes. None copies the teacher's and widens its last
            layer. Weights are drawn anew.
        head: "dirichlet" takes K outputs for K classes. "gaussian", which is "auto", takes 2 K for K logits, log rates
            and the like, means and then standard deviations; and 3 K for K numbers with normal noise.
        method: how to train; by default `MAP(optimizer=Adam(3e-3))`, whose length held-out rows choose.
        mixtures: further inputs for each row, each of whose numbers is taken from this row or another, and half of
            which get noise; 4 by default, and 0 unless inputs are a single tensor of real numbers.
        draws: S, a multiple of the members; the posterior's default if None, and needed for Laplace posteriors.
        seed: seed of draws, mixtures and training.

    Returns:
        The student, for `predict`, `evaluate` and `uncertainty`.

    Raises:
        ValueError: if the teacher is a single function, no head repeats its likelihood, there are fewer than two rows,
            inputs cannot be mixed, the last layer cannot be widened, the network gives another number of outputs, or
            the method has several members.
        TypeError: if an argument is of another kind.
    """
    check_choice(_HEADS, head=head)
    optional(partial(check_counts, least=0), mixtures=mixtures)
    optional(check_kind, MAP, "MAP, which trains one network", method=method)
    if method is not None and method.members != 1:
        raise ValueError(f"`method` must have one member, as a student is one network; got {method.members}.")
    source, seed = as_source(posterior, draws, seed), as_seed(seed)
    if source.model.shared or source.model.coupled:
        raise ValueError("inputs that rows share, and rows that depend on each other, cannot be distilled row by row.")
    rows, held_out = _all_inputs(source.model, inputs, mixtures, seed)
    first = source.predictive(rows_of(rows, slice(2)))
    chosen, outputs = head_of(head, first), first.outputs_SBK.shape[-1]
    if isinstance(chosen, NumbersHead):
        outputs = first.mean.shape[-1]
    wanted = chosen.width * outputs
    build = Build(outputs) if network is not None else _widening(source.model, rows_of(rows, slice(2)), outputs, wanted)
    made = student_network(source.model, chosen, build, given=network)
    student = model_of(source.model, chosen, made)
    _check_width(student, rows_of(rows, slice(2)), wanted)
    pair, others = (None if each is None else (each, _moments(source, each, chosen)) for each in (rows, held_out))
    point = fit(student, pair, method or MAP(optimizer=Adam(3e-3)), validation=others, seed=seed)
    predicting = model_of(source.model, chosen, made, predicts=True)
    return Student(replace(point, model=predicting), chosen, build, source)


def _widening(model: Model, inputs: Any, outputs: int, wanted: int) -> Build:
    """Return how a copy of the teacher's network gets the outputs wanted; a ValueError if its last layer cannot."""
    module, given = model.network.module, model.network(model.network.initial, inputs).shape[-1]
    layer = last_of(module, outputs=wanted)
    return Build(outputs, layer, size_of(module, layer) * wanted // given)


def _check_width(model: Model, inputs: Any, wanted: int) -> None:
    """Raise a ValueError unless a student's network gives so many outputs."""
    made = model.network(model.network.initial, inputs)
    if made.shape[-1] != wanted:
        raise ValueError(
            f"the student's network must give {wanted} outputs; it gives {made.shape[-1]}. Give `network`, a module of "
            f"your own with {wanted} outputs."
        )


def _all_inputs(model: Model, inputs: Any, mixtures: int | None, seed: int) -> tuple[Any, Any]:
    """Return inputs with their mixtures, and other mixtures to hold out; a ValueError if wanted where none can be."""
    rows = inputs_of(model, inputs)
    if mixtures and not can_mix(rows):
        raise ValueError(f"inputs that are no single tensor of real numbers cannot be mixed; got mixtures={mixtures}.")
    count, size = (_MIXTURES if can_mix(rows) else 0) if mixtures is None else mixtures, batch_size(rows)
    training = size * (1 + count)
    others = -(-_HELD_OUT // size) if count and training < _FEW else 0
    made = with_mixtures(rows, count + others, seed)
    return (made[:training], made[training:]) if others else (made, None)


def _moments(source: Source, rows: Any, head: Head) -> Tensor:
    """Return the teacher's moments at all rows, piece by piece."""
    pieces = (rows_of(rows, slice(a, a + _ROWS)) for a in range(0, batch_size(rows), _ROWS))
    return torch.cat([head.moments(source.predictive(piece)) for piece in pieces])
