"""Any posterior for arviz: weights, targets drawn from it, densities of the rows, and the same of the prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import unpacked
from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_counts, check_flags, check_kind, check_memory, optional, seen
from torchbayes.diagnostics import export
from torchbayes.model.batches.batch import Batch, tensors_of
from torchbayes.model.layout import broadcasting, matches
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.posteriors.draws import thinned
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.predict import predict
from torchbayes.predictive.prior import prior_functions
from torchbayes.randomness.seeds import Purpose, mix

_DRAWS = 1000  # of a posterior that is no chain, and of the prior


@explained()
def to_arviz(
    posterior: Posterior,
    data: Any = None,
    *,
    draws: int | None = None,
    weights: str | Sequence[str] = "*",
    prior: bool = False,
    seed: int = 0,
    chunk_size: int = 1024,
) -> Any:
    """Return a posterior for arviz: a DataTree from its version 1 on, an InferenceData before.

    Draws of other posteriors than chains are independent: one chain of arviz. The groups are

    - posterior: the drawn weights by the names of the network's parameters, and parameters of the likelihood;
    - posterior_predictive: a target at each row from each draw;
    - log_likelihood: log p(y_n | f_s(x_n)) of each row under each draw, in nats, which `arviz.loo` reads;
    - observed_data: the targets;
    - sample_stats: what the sampler reported of each draw (`Posterior.sample_stats`);
    - prior and prior_predictive: the same of draws from the prior of the model.

    Args:
        posterior: what `fit` returns.
        data: rows with targets, as for `evaluate`; without them there are weights alone.
        draws: S in all, of chains evenly spaced ones; all draws of chains and about 1,000 of other posteriors if None.
        weights: globs of the parameters that are handed over, `[]` for none.
        prior: whether the prior is drawn from too, as often, from at most 1,000 draws on each chain.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.

    Raises:
        ImportError: if arviz is not installed.
        TypeError: if `weights` are no globs.
        ValueError: if there are no rows, the result does not fit in memory, `weights` match nothing, `draws` is no
            multiple of the members, or the prior cannot be drawn from.
    """
    check_kind(Posterior, "what `fit` returns", posterior=posterior)
    check_counts(chunk_size=chunk_size)
    check_flags(prior=prior)
    optional(check_counts, draws=draws)
    seed, chains = as_seed(seed), 1 if posterior.chain_length is None else posterior.members
    if draws is None:
        members = posterior.members
        draws = -(-_DRAWS // members) * members if posterior.chain_length is None else posterior.default_draws
    rows = [] if data is None else list(unpacked(posterior.model, data))
    if data is not None and not sum(batch.size for batch in rows):
        raise ValueError("`data` is empty: there is no row to predict. Leave it out for weights alone.")
    posterior = thinned(posterior, draws)
    functions = posterior.functions(draws, seed=seed)
    warn_of(posterior.problems)
    groups = {"posterior": _weights(functions, weights, chains)}
    if posterior.sample_stats and draws == posterior.default_draws:
        shape = (chains, draws // chains)
        groups["sample_stats"] = {name: s for name, s in posterior.sample_stats.items() if s.shape == shape}
    if rows:
        groups["posterior_predictive"] = _targets(functions, rows, chains, seed=seed, chunk_size=chunk_size)
        groups["log_likelihood"] = _densities(functions, rows, chains, chunk_size=chunk_size)
        groups["observed_data"] = _named([torch.cat(parts) for parts in zip(*map(_targets_of, rows), strict=True)])
    if prior:
        calibration = rows[0].inputs if rows and posterior.model.network.batch_norms else None
        drawn = prior_functions(
            posterior.model, min(draws, _DRAWS), seed=seed, calibration=calibration, chunk_size=chunk_size
        )
        groups["prior"] = _weights(drawn, weights, 1)
        if rows:
            groups["prior_predictive"] = _targets(drawn, rows, 1, seed=seed, chunk_size=chunk_size)
    return export.from_groups(groups)


def _by_chain(values_SN: Tensor, chains: int) -> Tensor:
    """Return values of draws (S, ...), of which draw s is of chain s mod M, as (M, S / M, ...)."""
    return values_SN.unflatten(0, (-1, chains)).transpose(0, 1)


def _named(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return tensors by the name of targets; several by numbers."""
    return {"targets" if len(tensors) == 1 else f"targets_{i}": tensor for i, tensor in enumerate(tensors)}


def _targets_of(batch: Batch) -> list[Tensor]:
    """Return the targets of a batch, without an axis of a single column, as densities of rows have none."""
    return [values.squeeze(1) if values.shape[1:] == (1,) else values for values in tensors_of(batch.targets)]


def _weights(functions: Functions, globs: str | Sequence[str], chains: int) -> dict[str, Tensor]:
    """Return the drawn parameters whose names match, and all of the likelihood."""
    globs = [globs] if isinstance(globs, str) else globs
    if not isinstance(globs, list | tuple) or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"`weights` must be a glob such as 'head.*', or several; got {seen(globs)}.")
    network, learned = functions.model.split(functions.weights_SD)
    for glob in globs:
        if not any(matches(name, glob) for name in network):
            raise ValueError(f"`weights` names no random parameter by {glob!r}; there are {', '.join(network)}.")
    named = {name: value for name, value in network.items() if matches(name, globs)}
    return {name: _by_chain(value, chains) for name, value in {**named, **learned}.items()}


def _targets(
    functions: Functions, rows: Sequence[Batch], chains: int, *, seed: int, chunk_size: int
) -> dict[str, Tensor]:
    """Return a target of each draw at each row."""
    drawn_SN = []
    for number, batch in enumerate(rows):
        prediction = predict(functions, batch.inputs, chunk_size=chunk_size)
        drawn_SN.append(prediction.sample(functions.draws, seed=mix(Purpose.EXPORT, seed, number)))
    drawn_SN = [values.squeeze(2) if values.shape[2:] == (1,) else values for values in drawn_SN]
    return {"targets": _by_chain(torch.cat(drawn_SN, 1), chains)}


def _densities(functions: Functions, rows: Sequence[Batch], chains: int, *, chunk_size: int) -> dict[str, Tensor]:
    """Return log p(y_n | f_s(x_n)) of each row under each draw."""
    count = sum(batch.size for batch in rows)
    check_memory(8 * functions.draws * count, "densities of each row", functions.model.network.device, rows=count)
    parts_SN = []
    for batch in rows:
        outputs_SBK = functions(batch.inputs, chunk_size=chunk_size)
        functions.model.likelihood.check(outputs_SBK[0], batch.targets)
        judged = scored(functions.model.likelihood, outputs_SBK[0], batch.targets)
        parameters = broadcasting(functions.parameters, outputs_SBK)
        parts_SN.append(judged.likelihood.log_prob(outputs_SBK, judged.targets, parameters).double())
    return {"targets": _by_chain(torch.cat(parts_SN, 1), chains)}
