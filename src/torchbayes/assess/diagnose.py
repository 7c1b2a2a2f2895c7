"""diagnose: have the chains of a sampler converged, in weight space, in function space, and judging by the log?

A posterior with a density, such as a Gaussian, is judged in `torchbayes.assess.approximation` instead.

R̂ and effective sample sizes in weight space are those of every weight, (D,). In function space they are those of
the predictions at given inputs, class probabilities or means, (B, K), and with targets the log likelihood of every
row, (B,). Izmailov et al. (2021, "What are Bayesian neural network posteriors really like?") show why both are
needed: chains that differ in their weights may agree in their functions, and only these predict.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, overload

import torch
from torch import Tensor, distributions

from torchbayes.assess.approximation import DRAWS, Approximating, Approximation, of_density
from torchbayes.assess.diagnosis import (
    Diagnosis,
    Record,
    Trace,
    check_enough,
    check_unused,
    draw_trace,
    largest,
    of_chains,
    record_of,
)
from torchbayes.calls import explained
from torchbayes.checks import check_counts, optional, seen
from torchbayes.diagnostics import Summary
from torchbayes.driver.chains import LEAST, Chains, judged
from torchbayes.driver.log import read_log
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.layout import weight_name
from torchbayes.native.process import full_path, undisturbed
from torchbayes.posteriors.draws import Draws
from torchbayes.posteriors.files import CONFIG, read_described
from torchbayes.posteriors.locks import FileWarning
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.predict import predict

Log = str | PathLike[str] | Sequence[Mapping[str, Any]]

_BLOCK = 2**22  # numbers held at once, of weights of drawn networks or of their predictions
_FIELDS = ("log_density", "energy", "acceptance", "divergent", "saturated", "gradients", "step_size")


@overload
def diagnose(
    posterior: Draws | Chains,
    inputs: Any = None,
    targets: Any = None,
    *,
    log: Log | None = None,
    burn_in: int | None = None,
    chunk_size: int | None = None,
    draws: int | None = None,
) -> Diagnosis: ...


@overload
def diagnose(
    posterior: Approximating,
    inputs: Any = None,
    targets: Any = None,
    *,
    log: Log | None = None,
    burn_in: int | None = None,
    chunk_size: int | None = None,
    draws: int | None = None,
) -> Approximation: ...


@undisturbed
@explained()
def diagnose(
    posterior: Draws | Chains | Approximating,
    inputs: Any = None,
    targets: Any = None,
    *,
    log: Log | None = None,
    burn_in: int | None = None,
    chunk_size: int | None = None,
    draws: int | None = None,
) -> Diagnosis | Approximation:
    """Judge the chains of a sampler, finished or not; or how close a posterior with a density is to the true one.

    Memory is bounded by the results and `chunk_size`: draws on disk are read in blocks, and functions are computed
    at a few rows at a time.

    Args:
        posterior: draws in the order in which they were taken, at least 4 of each chain. The chains of `sample` are
            judged by their parameters and by what their steps reported, and take no other argument. A Gaussian,
            Laplace, radial or flow posterior, as of variational inference, is judged by its importance weights,
            which takes as many forward passes of all rows as there are draws.
        inputs: where functions are compared, or for a posterior with a density all rows to which it was fitted, as
            `predict` takes them: tensor (B, ...), or a tuple or mapping of such.
        targets: targets of these inputs, for the log likelihoods: tensor (B, ...), or a tuple or mapping of such
            where the likelihood takes one.
        log: the run directory, or the records of its `log.jsonl`.
        burn_in: iterations whose records are left out; None takes it from the run directory, or 0 for plain
            records.
        chunk_size: rows at which the functions of all draws are held at once; chosen automatically if None.
        draws: S, draws from a posterior with a density; 400 if None. Not for chains.

    Returns:
        The diagnosis; for a posterior with a density an `Approximation`.

    Raises:
        TypeError: if the posterior has neither chains nor a density, or inputs, targets or a log are given for the
            chains of `sample`.
        ValueError: if there are too few draws, draws are not finite, or inputs, targets and log do not fit.
    """
    if isinstance(posterior, Chains):
        check_unused(
            TypeError,
            "the draws of a network",
            "chains of `sample`, which need no more",
            inputs=inputs,
            targets=targets,
            log=log,
            burn_in=burn_in,
            chunk_size=chunk_size,
            draws=draws,
        )
        return of_chains(posterior)
    optional(check_counts, chunk_size=chunk_size, draws=draws)
    optional(check_counts, least=0, burn_in=burn_in)
    if isinstance(posterior, Approximating):
        check_unused(ValueError, "the chains of a sampler", type(posterior).__name__, log=log, burn_in=burn_in)
        return of_density(posterior, inputs, targets, draws=draws or DRAWS, chunk_size=chunk_size)
    if not isinstance(posterior, Posterior) or posterior.chain_length is None:
        raise TypeError(
            f"`posterior`: only the draws of a sampler, such as HMC, and posteriors with a density, such as a "
            f"Gaussian, can be diagnosed; got "
            f"{f'a {type(posterior).__name__} posterior' if isinstance(posterior, Posterior) else seen(posterior)}."
        )
    check_unused(ValueError, "a posterior with a density", type(posterior).__name__, draws=draws)
    return _of_draws(posterior, inputs, targets, log=log, burn_in=burn_in, chunk_size=chunk_size)


def _of_draws(
    posterior: Draws, inputs: Any, targets: Any, *, log: Log | None, burn_in: int | None, chunk_size: int | None
) -> Diagnosis:
    """Return the diagnosis of chains."""
    if inputs is None:
        raise ValueError("`inputs` must be rows at which the functions of the draws are compared; got None.")
    chains, draws = posterior.weights_MSD.shape[:2]
    check_enough(draws)
    warn_of(posterior.problems)
    record = None if log is None else _record(log, burn_in, chains)
    functions, name, total_MS = _functions(posterior, inputs, targets, chunk_size=chunk_size)
    spaces = {"weights": judged(posterior.weights_MSD), **functions}
    if record is not None and record.exact and len(record.step_R) >= LEAST:
        spaces["log density"] = judged(record.log_density_MR)
    worst = (_worst_weight(posterior, spaces["weights"]), _worst_function(posterior, inputs, spaces[name], name))
    level = _level(record, total_MS, batch_size(inputs))
    traces = tuple(trace for trace in (level, *worst) if trace is not None)
    return Diagnosis(chains, draws, spaces, traces, record)


# --- function space


def _functions(
    posterior: Draws, inputs: Any, targets: Any, *, chunk_size: int | None
) -> tuple[dict[str, Summary], str, Tensor | None]:
    """Return the diagnostics of functions, the name of their space, and the log likelihood of all rows (M, S)."""
    inputs = posterior.model.place(inputs)
    targets = None if targets is None else posterior.model.place(targets, "targets")
    rows = batch_size(inputs)
    if rows == 0 or (targets is not None and batch_size(targets) != rows):
        counted = "" if targets is None else f" and {batch_size(targets)} targets"
        raise ValueError(f"`inputs` must have at least one row, and a target for each; got {rows} rows{counted}.")
    first = _at_rows(_some_draws(posterior, slice(0, 1)), inputs, targets, slice(0, 1))
    name, numbers = first[0], first[1].numel() * posterior.weights_MSD.shape[1]
    step = chunk_size or max(1, _BLOCK // numbers)
    summaries: list[Summary] = []
    likelihoods: list[Summary] = []
    total_MS = None
    for start in range(0, rows, step):
        _, values, log_prob_MSB = _at_rows(posterior, inputs, targets, slice(start, start + step))
        summaries.append(judged(values))
        if log_prob_MSB is not None:
            likelihoods.append(judged(log_prob_MSB))
            part_MS = log_prob_MSB.double().sum(-1).cpu()
            total_MS = part_MS if total_MS is None else total_MS + part_MS
    spaces = {name: _joined(summaries)}
    return spaces | ({"log likelihoods": _joined(likelihoods)} if likelihoods else {}), name, total_MS


def _at_rows(posterior: Draws, inputs: Any, targets: Any, rows: slice) -> tuple[str, Tensor, Tensor | None]:
    """Return name and values of the predictions at some rows, (M, S, B, ...), and log likelihoods (M, S, B).

    Weights are read one block of draws at a time, in the order of the draws.
    """
    chains, draws, size = posterior.weights_MSD.shape
    some = rows_of(inputs, rows)
    block = max(1, _BLOCK // (chains * size))
    name, values, likelihoods = "", [], []
    for start in range(0, draws, block):
        # All draws of the block are predicted, from each chain in turn.
        predictive = predict(_some_draws(posterior, slice(start, start + block)), some)
        kind: Any = predictive.distribution
        classes = isinstance(kind, distributions.Categorical | distributions.Bernoulli)
        name = "probabilities" if classes else "means"
        predicted = kind.probs if classes else kind.mean
        values.append(predicted.unflatten(0, (-1, chains)).transpose(0, 1))
        if targets is not None:
            likelihood = predictive.likelihood
            likelihood.check(predictive.outputs_SBK[0], rows_of(targets, rows))
            log_prob_SB = likelihood.log_prob(predictive.outputs_SBK, rows_of(targets, rows), predictive.parameters)
            likelihoods.append(log_prob_SB.unflatten(0, (-1, chains)).transpose(0, 1))
    return name, torch.cat(values, 1), torch.cat(likelihoods, 1) if likelihoods else None


def _some_draws(posterior: Draws, which: slice) -> Draws:
    return replace(posterior, weights_MSD=posterior.weights_MSD[:, which])


def _joined(parts: Sequence[Summary]) -> Summary:
    return Summary(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


# --- traces


def _worst_weight(posterior: Draws, summary: Summary) -> Trace | None:
    worst = largest(summary.rhat)
    if worst is None:
        return None
    name = f"weight {weight_name(posterior.model.layout, worst[0])} (R-hat {float(summary.rhat[worst]):.2f})"
    return draw_trace(name, posterior.weights_MSD[:, :, worst[0]])


def _worst_function(posterior: Draws, inputs: Any, summary: Summary, kind: str) -> Trace | None:
    # The largest R-hat often belongs to a probability near zero, which does not matter.
    worst = largest(summary.mcse) or largest(summary.rhat)
    if worst is None:
        return None
    row, *indices = worst
    values = _at_rows(posterior, inputs, None, slice(row, row + 1))[1][:, :, 0]
    quantity, axis = ("probability", "class") if kind == "probabilities" else ("mean", "output")
    output = f" of {axis} {', '.join(map(str, indices))}" if indices else ""
    name = f"{quantity}{output} at input {row} (R-hat {float(summary.rhat[worst]):.2f})"
    return draw_trace(name, values[(..., *indices)])


def _level(record: Record | None, total_MS: Tensor | None, rows: int) -> Trace | None:
    """Return the log density along the chains, or else the log likelihood."""
    if record is not None and (record.exact or total_MS is None):
        name = "log density" if record.exact else "log density, mean of an epoch's estimates"
        return Trace(name, record.log_density_MR, "iteration", record.step_R)
    return None if total_MS is None else draw_trace(f"log likelihood of the {rows} rows", total_MS)


# --- the log


def _record(log: Log, burn_in: int | None, chains: int) -> Record | None:
    """Return the numbers of a log; None before its first record after burn-in."""
    config: dict[str, Any] = {}
    records: Any = log
    if isinstance(log, str | PathLike):
        directory = full_path(log)
        if not directory.is_dir():
            raise FileNotFoundError(f"`log` must be the directory of a run; there is no directory {log}.")
        config = read_described(directory / CONFIG) if (directory / CONFIG).is_file() else {}
        records = read_log(directory)
    if not isinstance(records, Sequence) or not all(isinstance(entry, Mapping) for entry in records):
        raise TypeError(f"`log` must be the directory of a run, or the records of its log; got {seen(log)}.")
    if burn_in is None:
        burn_in = int(config.get("method", {}).get("burn_in", 0))
    logged = {len(entry.get("log_density", ())) for entry in records}
    if config and len(logged) == 1 and min(logged) > chains:  # a fit left chains out, and does not say here which
        warnings.warn(
            f"the log is of {min(logged)} chains, of which the posterior has {chains}, so that it is not shown.",
            FileWarning,
            stacklevel=4,
        )
        return None
    for entry in records:
        if len(entry.get("log_density", ())) != chains:
            raise ValueError(f"the log is not one of {chains} chains of a sampler; a record of it: {dict(entry)}.")
    after = [entry for entry in records if entry["step"] > burn_in]
    if not after:
        return None
    exact = "gradients" in after[0]
    columns = {name: _column(after, name) for name in _FIELDS if name in after[0]}
    before = [entry for entry in records if entry["step"] <= burn_in]
    if exact:
        after_M = columns["gradients"].sum(-1)
        before_M = _column(before, "gradients").sum(-1) if before else torch.zeros_like(after_M)
    else:
        ones_M = torch.ones(chains, dtype=torch.float64)
        per_epoch = config.get("steps_per_epoch") or max(entry["step"] / entry["epoch"] for entry in records)
        after_M = ones_M * (after[-1]["step"] - burn_in) / per_epoch
        before_M = ones_M * burn_in / per_epoch
    steps_R = torch.tensor([entry["step"] for entry in after])
    return record_of(columns, steps_R, exact=exact, gradients=(after_M, before_M), burn_in=burn_in)


def _column(records: Sequence[Mapping[str, Any]], name: str) -> Tensor:
    """Return one number of every record, float64 (M, R)."""
    return torch.tensor([record[name] for record in records], dtype=torch.float64).T
