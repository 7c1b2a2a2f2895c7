"""Phrases for pages: problems, priors and likelihoods in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from torchbayes.catalogue.models import LIKELIHOODS, PRIORS
from torchbayes.catalogue.problem import Problem


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
    each = {glob: {key: value for key, value in rule.items() if key != "name"} for glob, rule in rules.items()}
    return listed([f"{_named_prior(rule['name'], each[glob], scale)} for {glob}" for glob, rule in rules.items()])


def _named_prior(name: str, settings: Mapping[str, Any], scale: float) -> str:
    scaled = name in PRIORS and "scale" in {field.name for field in fields(PRIORS[name].kind)}
    return with_settings(name, {**({"scale": scale} if scaled else {}), **settings})


def likelihood_of(problem: Problem) -> str:
    """Return the likelihood of a problem, such as "gaussian (scale learned)"."""
    entry = LIKELIHOODS.get(problem.likelihood)
    return with_settings(problem.likelihood, {**(entry.settings if entry else {}), **problem.likelihood_settings})
