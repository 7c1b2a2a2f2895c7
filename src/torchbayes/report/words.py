"""Phrases for pages: names in sentences, priors and likelihoods, and what held-out rows chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from torchbayes.catalogue.models import LIKELIHOODS, PRIORS
from torchbayes.catalogue.problem import Problem
from torchbayes.driver.run import recorded
from torchbayes.model.likelihoods.weighted import fixed_noise
from torchbayes.posteriors import Posterior


def capital(sentence: str) -> str:
    """Return a sentence with an initial capital, except for names such as cSGHMC."""
    return sentence[0].upper() + sentence[1:] if sentence.split(maxsplit=1)[0].islower() else sentence


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence: "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def with_settings(name: str, settings: Mapping[str, Any]) -> str:
    """Return a name and its settings: "student_t (df 4)"."""
    return f"{name} ({', '.join(f'{key} {value}' for key, value in settings.items())})" if settings else name


def prior_of(problem: Problem) -> str:
    """Return the prior of a problem, such as "N(0, 0.3²)"; one for each glob, in their order."""
    scale = 1.0 if problem.prior_scale is None else problem.prior_scale
    if problem.prior == "normal" and not problem.prior_settings:
        return f"N(0, {scale:g}²)"
    if isinstance(problem.prior, str):
        return _named_prior(problem.prior, problem.prior_settings, scale)
    rules = {glob: {"name": rule} if isinstance(rule, str) else rule for glob, rule in problem.prior.items()}
    settings_by_glob = {
        glob: {key: value for key, value in rule.items() if key != "name"} for glob, rule in rules.items()
    }
    return listed([
        f"{_named_prior(rule['name'], settings_by_glob[glob], scale)} for {glob}" for glob, rule in rules.items()
    ])


def _named_prior(name: str, settings: Mapping[str, Any], scale: float) -> str:
    scaled = name in PRIORS and "scale" in {field.name for field in fields(PRIORS[name].kind)}
    return with_settings(name, {**({"scale": scale} if scaled else {}), **settings})


def likelihood_of(problem: Problem) -> str:
    """Return the likelihood of a problem, such as "gaussian (scale learned)"."""
    entry = LIKELIHOODS.get(problem.likelihood)
    return with_settings(problem.likelihood, {**(entry.settings if entry else {}), **problem.likelihood_settings})


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
