"""What `empcov_shift` computes for one seed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors import EmpCov, Normal
from torchbayes.model.priors.univariate import PriorRules
from torchbayes.posteriors import Posterior
from torchbayes.predictive.predict import predict
from torchbayes.selection import fit
from torchbayes_experiments.empcov_shift.recipe import EMPCOV, METHODS, MODE, ShiftProblem, ShiftRecipe
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import best_device, metrics_of
from torchbayes_experiments.streams import Purpose, generator

NOTHING = 1e-9  # of the largest eigenvalue of the second moments: below it the inputs do not vary


def run(recipe: ShiftRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Fit every method to every problem, and score it under every shift.

    Args:
        recipe: the settings.
        seed: of rows, noise, starts and momenta.
        directory: of this seed; every fit leaves a file, so that an interrupted run continues.

    Returns:
        problem -> method -> what `scored` returns; and problem -> `noise`, the levels.
    """
    found: dict[str, Any] = {}
    for number, (name, problem) in enumerate(recipe.problems().items()):
        train, test = rows(problem, seed=seed)
        found[name] = {"noise": list(problem.noise)}
        for place, method in enumerate(METHODS):
            compute = partial(scored, problem, method, train, test=test, seed=seed)
            found[name][method] = load_or_compute(directory / f"problem_{number}_{place}.json", compute)
    return found


def rows(problem: ShiftProblem, *, seed: int) -> tuple[Pair, Pair]:
    """Return training and test rows, flat; added pixels are the last ones, 0 in both.

    Args:
        problem: the problem.
        seed: of the training rows.
    """
    data = load(problem.data, train_size=problem.train_size, seed=seed)
    parts = []
    for pair, count in ((data.train, None), (data.test, problem.test_rows)):
        flat = pair.inputs[:count].flatten(1)
        flat = torch.cat([flat, flat.new_zeros(len(flat), problem.dead)], 1)
        parts.append(Pair(flat.to(best_device()), pair.targets[:count].to(best_device())))
    return parts[0], parts[1]


def shifted(problem: ShiftProblem, inputs: Tensor, level: float, *, seed: int) -> Tensor:
    """Return inputs with noise in all pixels, or in the added ones alone; at all levels the same but for its size.

    Args:
        problem: the problem.
        inputs: (B, F).
        level: standard deviation.
        seed: of the noise.
    """
    drawn = torch.randn(inputs.shape, generator=generator(Purpose.SHIFT, seed))
    if problem.dead:
        drawn[:, : -problem.dead] = 0
    return inputs + level * drawn.to(inputs)


def model_of(problem: ShiftProblem, method: str, train: Pair) -> Model:
    """Return the model that a method is for."""
    size, classes = train.inputs.shape[1], int(train.targets.max()) + 1
    net = networks.mlp((size,), classes, hidden=problem.hidden).to(best_device())
    prior: PriorRules = Normal(problem.prior_scale)
    if method == EMPCOV:
        spread = float(train.inputs.double().square().mean().sqrt())
        own = EmpCov.of(train.inputs, scale=problem.prior_scale / spread, jitter=problem.jitter)
        prior = {first_layer(net): own, "*": prior}
    return Model(net, Categorical(), prior)


def first_layer(net: torch.nn.Module) -> str:
    """Return the name of the first layer's weight."""
    return next(name for name, _ in net.named_parameters())


def scored(problem: ShiftProblem, method: str, train: Pair, *, test: Pair, seed: int) -> dict[str, Any]:
    """Fit one method and score it.

    Args:
        problem: the problem.
        method: one of `METHODS`.
        train: training rows.
        test: test rows, without noise.
        seed: of starts, momenta and noise.

    Returns:
        metric -> values, one for each level of noise; `weights`: root mean square of the first layer's weights along
        the directions in which the training inputs do not vary; `prior`: that under the prior; `directions`: their
        number; and `problems` that the fit reported.
    """
    model = model_of(problem, method, train)
    posterior = fit(model, train, problem.single() if method == MODE else problem.hmc(), seed=seed, callbacks=())
    scores = [
        metrics_of(predict(posterior, shifted(problem, test.inputs, level, seed=seed), seed=seed), test.targets)
        for level in problem.noise
    ]
    return {
        **{name: [score[name] for score in scores] for name in scores[0]},
        **along_nothing(posterior, train.inputs),
        "prior": problem.jitter**0.5 if method == EMPCOV else problem.prior_scale,
        "problems": list(posterior.problems),
    }


def along_nothing(posterior: Posterior, inputs: Tensor) -> dict[str, float]:
    """Return the size of the first layer's weights along directions in which inputs do not vary, and their number."""
    flat = inputs.double().flatten(1)
    values, vectors = torch.linalg.eigh(flat.T @ flat)
    null = vectors[:, values < NOTHING * values[-1]]
    model = posterior.model
    name = first_layer(model.network.module)
    draws = model.layout.split(posterior.sample(posterior.default_draws))[name].double()
    return {"weights": float((draws @ null).square().mean().sqrt()), "directions": null.shape[1]}
