"""Networks, likelihoods and priors by name, one entry each, and by import path."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from torch import nn

from torchbayes.catalogue.imports import call, load_path, path_of, registered
from torchbayes.catalogue.named import Entry, LikelihoodEntry, NetworkEntry, PriorEntry
from torchbayes.checks import check_entries, check_kind, check_name, nearest, seen
from torchbayes.data.base import Data
from torchbayes.model import likelihoods, priors
from torchbayes.model.likelihoods import Custom, Likelihood
from torchbayes.model.likelihoods.protocol import target_columns
from torchbayes.networks import ColumnEncoding, build, names
from torchbayes.networks.registry import factories

_OWN_PLANS: dict[str, Any] = {
    "mlp": {"kernel": True, "plan": "vmap"},
    "tabular": {"kernel": True, "plan": "vmap"},
    "small_cnn": {"kernel": True},
    "lenet": {"kernel": True},
}
NETWORKS: dict[str, NetworkEntry] = {
    name: NetworkEntry(name, line, factories()[name], **_OWN_PLANS.get(name, {})) for name, line in names().items()
}


def _listed(room: ModuleType) -> dict[Any, Any]:
    """Return the classes of a package that have an entry here."""
    kinds = [vars(room)[name] for name in room.__all__]
    return {kind: kind.listed for kind in kinds if hasattr(kind, "listed")}


LIKELIHOODS: dict[str, LikelihoodEntry] = {
    of.name: LikelihoodEntry(of.name, of.line, kind, of.task, of.outputs, of.settings, of.prepare)
    for kind, of in _listed(likelihoods).items()
}
PRIORS: dict[str, PriorEntry] = {name: PriorEntry(name, line, kind) for kind, (name, line) in _listed(priors).items()}
ENTRIES: dict[str, Mapping[str, Entry]] = {"network": NETWORKS, "likelihood": LIKELIHOODS, "prior": PRIORS}
OPEN = "normal"  # the prior whose scale may be left open
GROUPS = {kind: f"torchbayes.{kind}s" for kind in ENTRIES}


def known(kind: str) -> dict[str, str]:
    """Return all names of "network", "likelihood" or "prior" with one line each, also of installed packages."""
    listed = {name: entry.line for name, entry in ENTRIES[kind].items()}
    others = {name: f"of an installed package: {point.value}" for name, point in registered(GROUPS[kind]).items()}
    return {**others, **listed}


def check_known(kind: str, name: str) -> str | None:
    """Check that a name exists, without importing it.

    Returns the import path of a name that is not one of the catalogue; None for those that are.
    """
    if name in ENTRIES[kind]:
        return None
    path = path_of(name, GROUPS[kind])
    if path is None:
        check_name(kind, name, known(kind))
    return path


def check_rules(rules: Any) -> None:
    """Check a prior, or one for each glob, without importing it.

    `rules` is a name, or glob -> a name or a mapping with `name` and settings.
    """
    for glob, rule in _by_glob(rules).items():
        if not isinstance(rule.get("name"), str):
            raise ValueError(f"the prior of {glob!r} must have a `name`, such as normal; got {seen(rule)}.")
        check_known("prior", rule["name"])


def _by_glob(rules: Any) -> dict[str, dict[str, Any]]:
    """Return a prior as glob -> name and settings."""
    if isinstance(rules, str):
        return {"*": {"name": rules}}
    check_kind(Mapping, "a name, or a mapping from globs to names", prior=rules)
    entries = {f"prior of {glob}": rule for glob, rule in rules.items()}
    check_entries(entries, check_kind, (str, Mapping), "a name, or a mapping with `name` and settings")
    return {str(glob): {"name": rule} if isinstance(rule, str) else dict(rule) for glob, rule in rules.items()}


def build_network(
    name: str, input_shape: tuple[int, ...], num_outputs: int, *, settings: Mapping[str, Any]
) -> nn.Module:
    """Return a freshly initialised module (B, *input_shape) -> (B, K).

    `name` is of the catalogue or of an entry point, or the import path of a function `build(input_shape, num_outputs,
    **settings)`; K is `num_outputs`.
    """
    if name in NETWORKS or (path := path_of(name, GROUPS["network"])) is None:
        return build(name, input_shape, num_outputs, **settings)
    network = call(load_path(path), path, input_shape, num_outputs, **settings)
    if not isinstance(network, nn.Module):
        raise TypeError(f"{path} must return a network, a torch.nn.Module; got {seen(network)}.")
    return network


def takes(name: str, setting: str) -> bool:
    """Return whether a network of the catalogue has a setting; false for one of the user."""
    return name in NETWORKS and setting in inspect.signature(NETWORKS[name].kind).parameters


def measured(name: str, data: Data) -> dict[str, Any]:
    """Return the settings of a network that are measured on the training rows: the encoding of their columns."""
    if not takes(name, "encoding") or not data.train.inputs.is_floating_point():
        return {}
    return {"encoding": ColumnEncoding.fit(data.train.inputs.flatten(1))}


def build_likelihood(name: str, settings: Mapping[str, Any]) -> Likelihood:
    """Return a likelihood.

    `name` is of the catalogue or of an entry point, or the import path of a class or function that makes one, or of a
    function of `outputs` that returns a torch Distribution.
    """
    path = check_known("likelihood", name)
    if path is None:
        entry = LIKELIHOODS[name]
        return _made("likelihood", entry, {**entry.settings, **settings})
    maker = load_path(path)
    if inspect.isfunction(maker) and not settings and [*inspect.signature(maker).parameters] == ["outputs"]:
        return Custom(maker)
    likelihood = call(maker, path, **settings)
    if isinstance(likelihood, type) or not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"{path} must return a likelihood, an object with the methods parameters, distribution, log_prob and "
            f"check, or have one argument, `outputs`, and return a torch Distribution; got {seen(likelihood)}."
        )
    return likelihood


def likelihood_outputs(name: str, data: Data) -> int:
    """Return the number of network outputs that a likelihood needs for data."""
    entry = LIKELIHOODS.get(name)
    return entry.outputs(data) if entry is not None else data.num_classes or target_columns(data)


def data_for(name: str, data: Data) -> Data:
    """Return data with their targets in the form that a likelihood takes; a likelihood of the user takes any.

    Raises ValueError if the likelihood is not for such data, with those that are.
    """
    if name not in LIKELIHOODS:
        return data
    try:
        return _prepared(LIKELIHOODS[name], data)
    except ValueError as refused:
        fitting = []
        for candidate, entry in LIKELIHOODS.items():
            with suppress(ValueError):
                _prepared(entry, data)
                fitting.append(candidate)
        names = f"{', '.join(fitting[:-1])} or {fitting[-1]}" if len(fitting) > 1 else fitting[0]
        raise ValueError(
            f"`likelihood` of `{data.name}`, a {data.task}, must be {names}; got {name!r}: {refused}."
        ) from None


def _prepared(entry: LikelihoodEntry, data: Data) -> Data:
    """Return data with their targets in the form that a likelihood of the catalogue takes."""
    if entry.task not in {data.task, None}:
        form = ", whose targets are in floating point (or --data_settings.task regression, of a table)"
        form = form if entry.task == "regression" else ""
        raise ValueError(f"it is for a {entry.task}{form}")
    return data if entry.prepare is None else entry.prepare(data)


def build_prior(rules: Any, settings: Mapping[str, Any], scale: float | None) -> Any:
    """Return a prior, or one for each glob, as `Model` takes it; None for a prior whose scale is open.

    `rules` is a name or import path; or glob -> such a name, or a mapping with the `name` and settings. `settings` are
    of a single name. `scale` is that of every prior that has a `scale` and whose settings give no other; None is 1,
    and leaves that of a single normal prior open.
    """
    check_rules(rules)
    if scale is None:
        if rules == OPEN and not settings:
            return None
        scale = 1.0
    if isinstance(rules, str):
        return _prior(rules, settings, scale)
    if settings:
        raise ValueError(
            "`prior_settings` are of a single prior, and `prior` has one for each glob. Write them beside the names: "
            "{'*': {name: laplace, scale: 0.3}}."
        )
    return {glob: _prior(rule.pop("name"), rule, scale) for glob, rule in _by_glob(rules).items()}


def _prior(name: str, settings: Mapping[str, Any], scale: float) -> Any:
    path = check_known("prior", name)
    maker = PRIORS[name].kind if path is None else load_path(path)
    arguments = {"scale": scale, **settings} if "scale" in _parameters(maker) else dict(settings)
    if path is None:
        return _made("prior", PRIORS[name], arguments)
    prior = call(maker, path, **arguments)
    if isinstance(prior, type) or not (hasattr(prior, "log_prob") or hasattr(prior, "resolve")):
        raise TypeError(f"{path} must return a prior, an object with log_prob or resolve; got {seen(prior)}.")
    return prior


def _made(kind: str, entry: Entry, settings: Mapping[str, Any]) -> Any:
    """Return an object of a class of this library. Raises ValueError if it has no such setting."""
    fields = [field.name for field in dataclasses.fields(entry.kind)]
    for name in settings:
        if name not in fields:
            raise ValueError(f"the {kind} {entry.name} has no setting {seen(name)}. {nearest(name, fields)}")
    return entry.kind(**settings)


def _parameters(made: Any) -> set[str]:
    try:
        return set(inspect.signature(made).parameters)
    except (TypeError, ValueError):  # not written in Python, or not callable
        return set()
