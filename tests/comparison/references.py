"""Comparisons with a reference, which is a short run of HMC."""

from __future__ import annotations

from dataclasses import replace

import torchbayes as tb
from torchbayes.catalogue.problem import Problem
from torchbayes.comparison.compare import Comparison

HMC = tb.HMC(3, 14, 4, thin=2, step_size=0.01, trajectory=0.05, plan="vmap")
DIGITS = Comparison(
    Problem("digits", "mlp", {"hidden": [12]}, train_size=150),
    {
        "ensemble": tb.MAP(2, epochs=3, batch_size=50, optimizer=tb.SGD(0.1), plan="vmap"),
        "sghmc": tb.SGHMC(2, 20, 10, thin=5, batch_size=50, plan="vmap"),
        "hmc": HMC,
    },
    corruptions=("gaussian_noise", "contrast"),
    rows=50,
    draws=4,
)
SINE = Comparison(
    Problem("toy_sine", "mlp", {"hidden": [6]}, "gaussian"),
    {
        "single": tb.MAP(1, epochs=5, plan="vmap"),
        "ensemble": tb.MAP(2, epochs=5, plan="vmap"),
        "hmc": replace(HMC, step_size=0.002, trajectory=0.01),
    },
    draws=4,
)
