"""Good and bad networks: trained to the same loss on the same rows, with and without rows that have wrong labels."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from torchbayes import networks
from torchbayes.assess.evaluate import evaluate
from torchbayes.data.base import Pair
from torchbayes.driver.progress import Event
from torchbayes.geometry import Plane, Spectrum, basin, learning_coefficient, spectrum, surface
from torchbayes.model import Model
from torchbayes.model.likelihoods import Categorical
from torchbayes.model.priors.univariate import Flat
from torchbayes.posteriors import Point
from torchbayes.posteriors.problems import ProblemWarning
from torchbayes.selection import fit
from torchbayes_experiments.flat_regions.recipe import GRID, PLAIN, SHAPES, Solutions
from torchbayes_experiments.streams import Purpose, generator

_WIDTH = 0.12  # of the kernels by which a density of eigenvalues is smoothed, in decades


def solution(recipe: Solutions, rows: Pair, test: Pair, *, name: str, share: float, seed: int) -> dict[str, Any]:
    """Train one network, and return how well it generalises and how far its basin reaches.

    Loss, basin, curvature and learning coefficient are those of the clean rows alone, whatever it was trained on.

    Args:
        recipe: the settings.
        rows: rows with true labels, at least those of the largest share.
        test: test rows.
        name: of the training, "SGD" or "SAM".
        share: rows with wrong labels, in units of the clean ones.
        seed: of everything random.

    Returns:
        `name`, `share`, `epochs`, `loss` and `error` on the clean rows, `poison_error` on the others, `test_error`,
        `test_nll`, `norm` of the weights; `basins`: shape -> what `volume` returns; `curvature`: what `curvature`
        returns; `coefficient` and `coefficient_error`.
    """
    clean, poison = divided(recipe, rows, share, seed=seed)
    model = _model(recipe, rows)
    point, epochs = trained(recipe, model, clean, poison=poison, name=name, seed=seed)
    own, far = evaluate(point, clean).metrics, evaluate(point, test).metrics
    wrong = 1 - evaluate(point, poison).metrics["accuracy"] if len(poison.targets) else 0.0
    chains = recipe.chains
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProblemWarning)  # of volumes from few directions, which differences remove
        basins = {shape: volume(recipe, model, clean, point=point, shape=shape, seed=seed) for shape in SHAPES}
        local = learning_coefficient(model, clean, point, localisation=recipe.localisation, method=chains, seed=seed)
    return {
        "name": name,
        "share": share,
        "epochs": epochs,
        "loss": own["nll"],
        "error": 1 - own["accuracy"],
        "poison_error": wrong,
        "test_error": 1 - far["accuracy"],
        "test_nll": far["nll"],
        "norm": float(point.weights_MD.norm()),
        "basins": basins,
        "curvature": curvature(recipe, model, clean, point=point, seed=seed),
        "coefficient": local.value,
        "coefficient_error": local.error,
    }


def divided(recipe: Solutions, rows: Pair, share: float, *, seed: int) -> tuple[Pair, Pair]:
    """Return the clean rows, and rows with a wrong label each, drawn evenly from the other classes.

    The rows of a smaller share are among those of a larger one, with the same labels.

    Args:
        recipe: the settings.
        rows: rows with true labels.
        share: wrong rows, in units of the clean ones.
        seed: of the choice and the labels.

    Returns:
        Clean and wrong rows.
    """
    source = generator(Purpose.POISON, seed)
    order = torch.randperm(len(rows.targets), generator=source)
    classes = int(rows.targets.max()) + 1
    moves = 1 + torch.randint(classes - 1, rows.targets.shape, generator=source)
    clean, wrong = order[: recipe.clean], order[recipe.clean : recipe.clean + round(share * recipe.clean)]
    return (
        Pair(rows.inputs[clean], rows.targets[clean]),
        Pair(rows.inputs[wrong], (rows.targets[wrong] + moves[wrong]) % classes),
    )


def trained(recipe: Solutions, model: Model, clean: Pair, *, poison: Pair, name: str, seed: int) -> tuple[Point, int]:
    """Return a network that fits the clean rows at the wanted loss, and the number of epochs.

    It is that of the first epoch after which the loss is at most the level and no row is misclassified, with its last
    layer scaled down so that the loss is the level itself; if there is no such epoch, it is the last one as it is.

    Args:
        recipe: the settings.
        model: the model.
        clean: rows with true labels, on which loss and mistakes are counted.
        poison: rows that are trained on as well.
        name: of the training.
        seed: of initialisation and data order.
    """
    done = 0

    def fitted(event: Event) -> bool:
        nonlocal done
        done = event.epoch
        found = evaluate(Point(model, event.state.weights_MD), clean).metrics
        return found["nll"] <= recipe.level and found["accuracy"] == 1

    rows = tuple(torch.cat(parts) for parts in zip(clean, poison, strict=True))
    point = fit(model, rows, recipe.trainers()[name], seed=seed, callbacks=(fitted,))
    assert isinstance(point, Point)
    return scaled(model, point, clean, level=recipe.level), done


def scaled(model: Model, point: Point, clean: Pair, *, level: float) -> Point:
    """Return a network whose last layer is scaled down so that its mean loss is a level; as it is if there is no such.

    Where no row is misclassified the loss falls as the scale grows, so that one scale has the level.

    Args:
        model: the model, whose last layer is linear.
        point: the network.
        clean: the rows of the loss.
        level: the loss, in nats.
    """
    outputs, targets = point.functions()(clean.inputs)[0].double(), clean.targets.to(point.weights_MD.device)

    def loss(scale: float) -> float:
        return float(torch.nn.functional.cross_entropy(scale * outputs, targets))

    if bool((outputs.argmax(1) != targets).any()) or loss(1.0) > level:
        return point
    low, high = 0.0, 1.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if loss(middle) > level else (low, middle)
    weights_D = point.weights_MD[0].clone()
    for name in model.layout.names[-2:]:  # weights and biases of the last layer
        model.layout.split(weights_D)[name].mul_(high)
    return Point(model, weights_D[None])


def volume(recipe: Solutions, model: Model, clean: Pair, *, point: Point, shape: Any, seed: int) -> dict[str, Any]:
    """Return radii of a basin, and its volume in units of the ball of radius one.

    Args:
        recipe: the settings.
        model: the model.
        clean: the rows of the loss.
        point: the network.
        shape: of the directions.
        seed: of the directions.

    Returns:
        `orders`: log₁₀ E[r^D], as the paper takes it; `typical`: D E[log₁₀ r], of the typical direction, and
        `typical_error`; `radii`, `capped`.
    """
    found = basin(model, clean, point, threshold=recipe.threshold, directions=recipe.directions, shape=shape, seed=seed)
    size, log_K = found.size, found.radii_K.log10()
    orders = float((size * found.radii_K.log()).logsumexp(0) - math.log(len(log_K))) / math.log(10)
    return {
        "orders": orders,
        "typical": size * float(log_K.mean()),
        "typical_error": size * float(log_K.std()) / math.sqrt(len(log_K)),
        "radii": [float(f"{radius:.4g}") for radius in found.radii_K],
        "capped": found.capped,
    }


def curvature(recipe: Solutions, model: Model, clean: Pair, *, point: Point, seed: int) -> dict[str, Any]:
    """Return the effective dimension, trace and eigenvalues of the Gauss-Newton matrix of the clean rows.

    Args:
        recipe: the settings.
        model: the model.
        clean: the rows.
        point: the network.
        seed: of the probes.

    Returns:
        `effective` and `effective_error`; `trace`; `top`, the largest Ritz value; `density`, eigenvalues per decade
        at `GRID`.
    """
    settings: dict[str, Any] = {"steps": recipe.steps, "probes": recipe.probes, "seed": seed}
    found = spectrum(model, clean, point, matrix="ggn", **settings)
    size = found.effective_dimension(recipe.precision)
    return {
        "effective": size.value,
        "effective_error": size.error,
        "trace": found.trace.value,
        "top": float(found.values_PK.max()),
        "density": [float(f"{value:.4g}") for value in per_decade(found)],
    }


def per_decade(found: Spectrum) -> Tensor:
    """Return the number of eigenvalues per decade at `GRID`, smoothed by normal kernels of 0.12 decades."""
    nodes_PK = found.values_PK.clamp_min(1e-12).log10().unsqueeze(-1)
    kernels = torch.exp(-0.5 * ((torch.tensor(GRID, dtype=torch.float64) - nodes_PK) / _WIDTH) ** 2) / (
        _WIDTH * math.sqrt(2 * math.pi)
    )
    return found.size * (found.weights_PK.unsqueeze(-1) * kernels).sum(1).mean(0)


def surfaces(recipe: Solutions, rows: Pair, *, seed: int) -> dict[str, Any]:
    """Return the loss on the clean rows over a plane around the best and around the worst network.

    Args:
        recipe: the settings.
        rows: as for `solution`.
        seed: as for `solution`.

    Returns:
        `shares`, of poison; `x`, `y`; and `nll`, a grid for each share, in nats.
    """
    shares = [min(recipe.shares), max(recipe.shares)]
    found: dict[str, Any] = {"shares": shares, "nll": []}
    model = _model(recipe, rows)
    for share in shares:
        clean, poison = divided(recipe, rows, share, seed=seed)
        point, _ = trained(recipe, model, clean, poison=poison, name=PLAIN, seed=seed)
        over = surface(model, clean, Plane.random(model, point, seed=seed), points=recipe.points)
        found |= {"x": over.x_P.tolist(), "y": over.y_Q.tolist()}
        found["nll"].append([[float(f"{value:.4g}") for value in line] for line in over.nll_QP])
    return found


def _model(recipe: Solutions, rows: Pair) -> Model:
    network = networks.mlp(tuple(rows.inputs.shape[1:]), int(rows.targets.max()) + 1, hidden=recipe.hidden)
    return Model(network, Categorical(), Flat())
