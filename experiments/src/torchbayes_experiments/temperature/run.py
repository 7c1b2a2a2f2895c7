r"""What `temperature` computes for one seed: posteriors at every T, with and without augmentation, by HMC and SGHMC.

With k views of every image the log likelihood of a row is the mean over its views, so that N rows count as N:

    log p_T(w|D) = [ (1/k) Σ_n Σ_v log p(y_n | f_w(x_nv)) + log N(w; 0, σ² I) ] / T + const

This is, without weights of rows, the joint density of k N rows at temperature k T under the prior N(0, σ²/k I):

    log p_T(w|D) = [ Σ_n Σ_v log p(y_n | f_w(x_nv)) + log N(w; 0, (σ²/k) I) ] / (k T) + const

the form that is sampled, since fast kernels run it. Trajectories of HMC, (π/2) σ √T, are the same in both.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.diagnose import diagnose
from torchbayes.assess.evaluate import evaluate
from torchbayes.data import load
from torchbayes.data.base import Pair
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Normal
from torchbayes.posteriors import Draws
from torchbayes.selection import fit
from torchbayes_experiments.files import load_or_compute
from torchbayes_experiments.shared.classifiers import METRICS, best_device
from torchbayes_experiments.shared.image_hmc import convergence, rhat_and_ess
from torchbayes_experiments.temperature.recipe import (
    FULL,
    METHODS,
    ROWS,
    VIEWS,
    TemperatureProblem,
    TemperatureRecipe,
)

_DIAGNOSED = 200  # test rows at which R-hat is taken


class Rows(NamedTuple):
    """Rows of a problem.

    Attributes:
        train: images, or all views of them.
        test: test images.
        views: k, views of each image.
    """

    train: Pair
    test: Pair
    views: int


def run(recipe: TemperatureRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Sample and score every posterior.

    Args:
        recipe: the settings.
        seed: of the training images, the starts and the chains.
        directory: of this seed; every posterior leaves a file, so that an interrupted run continues.

    Returns:
        problem -> rows -> method -> what `numbers` returns at each T, in the order of the recipe; and problem ->
        `temperatures`.
    """
    found: dict[str, Any] = {}
    for place, problem in enumerate(recipe.problems):
        own: dict[str, Any] = {"temperatures": list(recipe.temperatures)}
        for side, what in enumerate(ROWS):
            rows = rows_of(problem, seed=seed, augmented=what == VIEWS)
            own[what] = {
                method: [
                    load_or_compute(
                        directory / f"problem_{place}_{side}_{number}_T{heat:g}.json",
                        partial(numbers, recipe, problem, rows, method=method, temperature=heat, seed=seed),
                    )
                    for heat in recipe.temperatures
                ]
                for number, method in enumerate(METHODS)
            }
        found[problem.label] = own
    return found


def rows_of(problem: TemperatureProblem, *, seed: int, augmented: bool) -> Rows:
    """Return training and test rows; all views of the first image order come first, then those of the first shift.

    Args:
        problem: its settings.
        seed: of the images; a set with several splits has the split of the seed's number.
        augmented: whether there are views beside the images.
    """
    data = load(problem.data, train_size=problem.train_size, seed=seed)
    seen = views(data.train.inputs, problem.shift) if augmented else [data.train.inputs]
    test = [part[: problem.test_rows] for part in data.test]
    device = best_device()
    return Rows(
        Pair(pooled(torch.cat(seen), problem.pool).to(device), data.train.targets.repeat(len(seen)).to(device)),
        Pair(pooled(test[0], problem.pool).to(device), test[1].to(device)),
        len(seen),
    )


def views(images: Tensor, shift: int) -> list[Tensor]:
    """Return images (N, C, H, W), and the same shifted down, up, right and left, with what enters of the least value.

    Args:
        images: N images.
        shift: in pixels, at least 1.
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, (shift,) * 4, value=float(images.min()))
    corners = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    return [padded[..., a * shift : a * shift + height, b * shift : b * shift + width] for a, b in corners]


def pooled(images: Tensor, pool: int) -> Tensor:
    """Return images averaged over squares of `pool` pixels a side."""
    return F.avg_pool2d(images, pool) if pool > 1 else images


def model_of(problem: TemperatureProblem, rows: Rows, temperature: float) -> Model:
    """Return the model of all views whose joint density is that of images with k averaged views at T, up to a constant.

    Args:
        problem: its settings.
        rows: its rows.
        temperature: T.
    """
    widths = {"hidden": problem.hidden} if problem.network == "mlp" else {}
    classes = int(rows.test.targets.max()) + 1
    network = networks.build(problem.network, tuple(rows.train.inputs.shape[1:]), classes, **widths)
    prior = Normal(problem.prior_scale / rows.views**0.5)
    return Model(network.to(best_device()), Categorical(), prior, temperature=temperature * rows.views)


def numbers(
    recipe: TemperatureRecipe,
    problem: TemperatureProblem,
    rows: Rows,
    *,
    method: str,
    temperature: float,
    seed: int,
) -> dict[str, Any]:
    """Sample one posterior and score its average.

    Args:
        recipe: the settings of both methods.
        problem: those of the problem.
        rows: its rows.
        method: one of `METHODS`.
        temperature: T.
        seed: of the starts and the chains.

    Returns:
        `METRICS` of the test rows; `few`, the NLL of the average over few of the draws; and `functions`, what
        `convergence` returns of the test probabilities.
    """
    sampler = recipe.hmc if method == FULL else recipe.sghmc(len(rows.train.targets))
    model = model_of(problem, rows, temperature)
    posterior = fit(model, rows.train, sampler, seed=seed, callbacks=())
    assert isinstance(posterior, Draws)
    found = evaluate(posterior, rows.test).metrics
    health = convergence(*rhat_and_ess(diagnose(posterior, rows.test.inputs[:_DIAGNOSED]), "functions"))
    few = evaluate(posterior, rows.test, draws=recipe.few).metrics["nll"]
    return {**{key: found[key] for key in METRICS}, "few": few, "functions": health}
