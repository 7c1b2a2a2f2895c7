"""Phrases on what held-out rows chose for a fit, and on the prior and noise of a posterior."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from torchbayes.driver.run import recorded
from torchbayes.model.likelihoods.weighted import fixed_noise
from torchbayes.posteriors import Posterior
from torchbayes.report.words import listed

_FACTOR = "a factor of {:.3g} on the precision of the prior"
_WORDS: dict[str, Callable[[Any], str]] = {
    "epochs": "{:,} epochs".format,
    "epochs_of_descent": lambda epochs: "the usual number of epochs" if epochs is None else f"{epochs:,} epochs",
    "averaging_lr": "a learning rate of {:.2g} while it averages".format,
    "burn_in": lambda share: f"averaging from {share:.0%} of the run on".replace("%", " %"),
    "kl_weight": "a weight of {:.3g} on the divergence from the prior".format,
    "prior": _FACTOR.format,
    "factor": _FACTOR.format,
    "prior_scale": "a prior scale of {:.3g}".format,
}


def settings_chosen(directory: Path) -> list[str]:
    """Return the settings that held-out rows chose for the run in a directory, each in words; empty if none."""
    record = recorded(directory)
    chosen = {} if record is None else record[1].get("chosen") or {}
    settings = {**chosen.get("mode", {}), **chosen.get("settings", {})}
    settings |= {name: chosen[name] for name in ("prior_scale",) if name in chosen}
    return [say(settings[name]) for name, say in _WORDS.items() if name in settings]


def chosen_by_rows(directory: Path) -> str:
    """Return a sentence on what held-out rows chose for a run, and how many rows; empty if they chose nothing."""
    settings = settings_chosen(directory)
    if not settings:
        return ""
    record = recorded(directory)
    held_out = [] if record is None else record[1]["chosen"]["held_out"]
    trials = f" in {len(held_out)} trial runs" if len(held_out) > 1 else ""
    return f"{sum(held_out):,} training rows, held out{trials}, chose {listed(settings)}. The fit itself had all rows."


def chosen_scales(posterior: Posterior) -> str:
    """Return a sentence on the prior and noise that a Laplace posterior got after its fit; empty if it got none."""
    if not (posterior.prior_chosen or posterior.noise_chosen):
        return ""
    model, phrases = posterior.model, []
    if posterior.prior_chosen:
        phrases.append(f"its prior has the scale {_range(model.prior.stds()[: model.network.layout.size])}")
    if posterior.noise_chosen:
        phrases.append(f"its noise the scale {listed([f'{scale:.3g}' for scale in fixed_noise(model.likelihood)])}")
    return f"Prior and noise above are those of the training; of the posterior {listed(phrases)}."


def _range(values_D: Tensor) -> str:
    least, most = float(values_D.min()), float(values_D.max())
    return f"{least:.3g}" if most <= least * 1.001 else f"{least:.3g} to {most:.3g} from layer to layer"
