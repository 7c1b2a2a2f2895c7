"""Pictures of predictions over a whole input space of one or two dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchbayes.data import Data
from torchbayes.data.base import Standardise
from torchbayes.posteriors.functions import Functions
from torchbayes.predictive.classes import class_probs
from torchbayes.predictive.predict import Source, predict
from torchbayes.report import figures
from torchbayes.report.html import Picture
from torchbayes.report.words import listed

# Noise-free functions of toy problems that have a formula, in raw units.
TRUTH: dict[str, Callable[[Tensor], Tensor]] = {"toy_sine": lambda x: torch.sin(3 * x)}


def band_over(data: Data, named: Mapping[str, Functions | Source]) -> Picture:
    """Draw functions of one input with their bands and the training data, in raw units, a panel for each label."""
    targets = data.target_standardise or Standardise.identity()
    shift, scale = float(targets.mean), float(targets.scale)
    every = torch.cat([data.train.inputs, data.test.inputs])
    low, high = every.min(), every.max()
    inputs = torch.linspace(float(low), float(high), 300)[:, None]
    x = data.standardise.inverse(inputs)[:, 0]
    bands = {}
    for label, functions in named.items():
        predictive = predict(functions, inputs.to(functions.model.network.device))
        means_SB = predictive.distribution.mean[..., 0].cpu() * scale + shift
        bands[label] = figures.Band(
            x,
            means_SB.mean(0),
            predictive.epistemic[:, 0].sqrt() * scale,
            predictive.variance[:, 0].sqrt() * scale,
            means_SB[:10] if predictive.draws > 1 else None,
        )
    raw = data.standardise.inverse(data.train.inputs)[:, 0], targets.inverse(data.train.targets).reshape(-1)
    truth = (x, TRUTH[data.name](x)) if data.name in TRUTH else None
    return Picture(
        "What each method believes about the function" if len(named) > 1 else "The function over the inputs",
        figures.predictive_band(bands, *raw, truth=truth, target_name=data.target_label),
        f"Functions of the one input of {data.name}, with {len(data.train.inputs):,} training rows as points, in raw "
        f"units. Bands: two standard deviations; thin lines: drawn functions. Where there are no data these should "
        f"disagree: the dark band opens there, the light band adds the noise of the targets.",
        alt=f"Predicted functions with bands by {listed(list(named))}, over the training data.",
    )


def surface_over(data: Data, named: Mapping[str, Functions | Source]) -> Picture:
    """Draw P(second class) and the entropy over the plane of two inputs, in raw units, a column for each label."""
    points = data.standardise.inverse(data.train.inputs)
    low, high = points.amin(0), points.amax(0)
    room = 0.6 * (high - low)
    x, y = (torch.linspace(float(a), float(b), 120) for a, b in zip(low - room, high + room, strict=True))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)
    surfaces = {}
    for label, functions in named.items():
        inputs = data.standardise(grid.flatten(0, 1)).to(functions.model.network.device)
        surfaces[label] = class_probs(predict(functions, inputs).distribution).reshape(120, 120, 2)[..., 1]
    return Picture(
        "Probability and doubt over the plane",
        figures.classification_surface(surfaces, x, y, inputs=points, targets=data.train.targets),
        f"Above: the probability of class 1, which is “{data.classes[1]}”, over the two inputs of {data.name}; below: "
        f"the entropy of the average. Points: {len(data.train.inputs):,} training rows. On the black line both are "
        f"equally likely. Entropy is doubt: it should grow away from the data, not only along the line.",
        alt=f"Maps of class probability and entropy by {listed(list(named))}, with the training data on top.",
    )
