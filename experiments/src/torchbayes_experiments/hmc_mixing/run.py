"""What `hmc_mixing` computes for one seed: the chains of every problem, and their R-hat in both spaces."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchbayes.assess.diagnose import Diagnosis
from torchbayes.diagnostics import summary
from torchbayes_experiments.hmc_mixing.recipe import MixingRecipe
from torchbayes_experiments.shared.image_hmc import (
    SPACES,
    Problem,
    convergence,
    mixing,
    over_problems,
    rhat_and_ess,
    run_hmc,
    set_up,
)
from torchbayes_experiments.streams import Purpose, generator


def run(recipe: MixingRecipe, seed: int, directory: Path) -> dict[str, Any]:
    """Run the chains of every problem and diagnose them in both spaces.

    Args:
        recipe: the settings.
        seed: of the training rows, the starts and the chains.
        directory: of this seed; the numbers of finished problems are read, interrupted chains continue.

    Returns:
        problem -> what `mixing` returns; `counts`: space -> R-hat, rounded to 0.0001 -> number of quantities;
        `floor`: what `independent` returns; and `traces` of the quantities that mix worst: `name`, `values` (M, S),
        `at` (S,) and `over`.
    """

    def compute(problem: Problem, home: Path) -> dict[str, Any]:
        setup = set_up(problem, seed)
        _, found = run_hmc(problem, setup, seed=seed, directory=home / "hmc")
        numbers = {"counts": {space: counts(found, space) for space in SPACES}, "traces": _traces(found)}
        return mixing(found) | numbers | {"floor": independent(found.chains, found.draws, seed)}

    return over_problems(recipe.problems(), compute, home=directory, file="mixing.json")


def independent(chains: int, draws: int, seed: int, *, quantities: int = 2000) -> dict[str, float]:
    """Return R-hat of independent draws: the best that chains of this length can show.

    Args:
        chains: M.
        draws: S.
        seed: of the draws.
        quantities: how many are simulated.

    Returns:
        What `convergence` returns.
    """
    values = torch.randn(chains, draws, quantities, generator=generator(Purpose.INDEPENDENT, seed))
    found = summary(values)
    return convergence(found.rhat.numpy(), found.ess_bulk.numpy())


def counts(found: Diagnosis, space: str) -> dict[str, int]:
    """Return how many quantities of a space have each R-hat, rounded to 0.0001.

    Args:
        found: the diagnosis.
        space: "weights" or "functions".

    Returns:
        R-hat as text -> number of quantities, in rising order.
    """
    counted = Counter(f"{rhat:.4f}" for rhat in rhat_and_ess(found, space)[0])
    return dict(sorted(counted.items(), key=lambda pair: float(pair[0])))


def _traces(found: Diagnosis) -> list[dict[str, Any]]:
    rounded = {"log density": 1}  # decimals: it is in the thousands
    return [
        {
            "name": trace.name,
            "values": np.round(trace.values_MS.numpy(), rounded.get(trace.name, 4)).tolist(),
            "at": trace.at_S.tolist(),
            "over": trace.over,
        }
        for trace in found.traces
    ]
