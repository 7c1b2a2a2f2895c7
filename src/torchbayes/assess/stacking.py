"""stack: a mixture of posteriors whose weights are found by what they say of rows that were not fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchbayes.assess.evaluate import unpacked
from torchbayes.assess.leave_one_out import LeaveOneOut
from torchbayes.calls import explained
from torchbayes.checks import check_counts, check_text, seen
from torchbayes.diagnostics.stacking import stacking_weights
from torchbayes.model.batches.batch import Batch
from torchbayes.model.layout import broadcasting
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.model import check_finite
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.mixtures.weighted import WeightedMixture
from torchbayes.posteriors.posterior import Posterior


@undisturbed
@explained()
def stack(
    posteriors: Posterior | Sequence[Posterior],
    data: Any,
    *,
    names: Sequence[str] | None = None,
    chunk_size: int = 1024,
) -> WeightedMixture:
    """Return the mixture of posteriors, or of the members of one, that describes held-out rows best.

    Its weights maximise Σ_n log Σ_k w_k p_k(y_n | x_n) (Yao, Vehtari, Simpson and Gelman 2018), with one further row,
    shared evenly, at which each alone is possible, so that none gets weight 0 where rows are few
    (`torchbayes.diagnostics.stacking_weights`). Rows to which the posteriors were fitted must not choose the weights:
    the one that overfits most would win.

    Args:
        posteriors: posteriors of one network, each of which gets a weight; or one posterior, whose members or chains
            get weights.
        data: rows that were held out of every fit, as for `evaluate`; or, without such, what `loo` says of the rows
            that were fitted: one result for one posterior, a sequence of them for several.
        names: a name of each weight, for `weights` of the result; numbered if None.
        chunk_size: rows that go through a network at once.

    Returns:
        The mixture, a posterior for `predict`, `evaluate` and `save`.

    Raises:
        ValueError: if there are fewer than two to weigh, they are of other networks or predict in closed form, or a
            row is impossible under all of them.
        TypeError: if an argument is of the wrong kind.
    """
    check_counts(chunk_size=chunk_size)
    parts = _parts_of(posteriors)
    alone = isinstance(posteriors, Posterior)
    count = parts[0].members if alone else len(parts)
    if count < 2:
        raise ValueError("`posteriors` must be two or more, or one with several members: a single one has weight 1.")
    kind = "member" if alone else "posterior"
    labels = tuple(f"{kind} {k}" for k in range(count)) if names is None else _labels(names, count)
    equal = tuple((1 / len(parts) / posterior.members,) * posterior.members for posterior in parts)
    mixture = WeightedMixture(parts[0].model, parts, equal)  # refuses what cannot be mixed before it is computed
    if (held_out := _left_out(data, alone)) is None:
        held_out = _held_out(parts, data, alone=alone, chunk_size=chunk_size)
    densities_NK, weights_N = held_out
    if densities_NK.shape[1] != count:
        raise ValueError(
            f"`data` must be a leave-one-out result for each of the {count} that are weighed; got "
            f"{densities_NK.shape[1]}."
        )
    weights_K = stacking_weights(densities_NK, row_weights_N=weights_N).weights_K
    weights = (weights_K / weights_K.sum()).tolist()
    if alone:
        shares = (tuple(weights),)
    else:
        shares = tuple((w / each.members,) * each.members for w, each in zip(weights, parts, strict=True))
    problems = [problem for posterior in parts for problem in posterior.problems]
    return WeightedMixture(mixture.model, parts, shares, labels).with_problems(problems)


def _parts_of(posteriors: Any) -> tuple[Posterior, ...]:
    if isinstance(posteriors, Posterior):
        return (posteriors,)
    if not isinstance(posteriors, list | tuple) or not all(isinstance(each, Posterior) for each in posteriors):
        raise TypeError(
            f"`posteriors` must be a posterior or a list of such, as `fit` returns; got {seen(posteriors)}."
        )
    return tuple(posteriors)


def _labels(names: Any, count: int) -> tuple[str, ...]:
    if not isinstance(names, list | tuple) or len(names) != count or len(set(names)) != count:
        raise ValueError(f"`names` must be {count} different texts, one for each weight; got {seen(names)}.")
    for name in names:
        check_text(names=name)
    return tuple(names)


def _left_out(data: Any, alone: bool) -> tuple[Tensor, Tensor] | None:
    """Return densities (N, K) and weights of rows from leave-one-out results; None where data are rows."""
    results = [data] if isinstance(data, LeaveOneOut) else data
    if not isinstance(results, list | tuple) or not any(isinstance(each, LeaveOneOut) for each in results):
        return None
    left: list[LeaveOneOut] = [each for each in results if isinstance(each, LeaveOneOut)]
    if len(left) < len(results) or (alone and len(left) > 1):
        raise ValueError("`data` must be one leave-one-out result for one posterior, or one for each of several.")
    if len({len(each.elpd_N) for each in left}) > 1:
        raise ValueError("`data` must be leave-one-out results of the same rows; their numbers of rows differ.")
    if len({each.targets for each in left} - {()}) > 1:
        raise ValueError("`data` must be leave-one-out results of the same rows, in one order; their targets differ.")
    densities_NK = left[0].elpd_NM if alone else torch.stack([each.elpd_N for each in left], 1)
    return densities_NK, left[0].weights_N


def _held_out(parts: Sequence[Posterior], data: Any, *, alone: bool, chunk_size: int) -> tuple[Tensor, Tensor]:
    """Return log densities of rows, of the members of one part or of each part, (N, K), and weights of rows."""
    drawn = [(posterior.functions(), posterior.members) for posterior in parts]
    model, densities_and_weights = parts[0].model, list[tuple[Tensor, Tensor]]()
    for batch in unpacked(model, data):
        check_finite(batch.inputs)
        each = [_by_member(functions, members, batch, chunk_size) for functions, members in drawn]
        columns = [by_member_MB if alone else _averaged(by_member_MB) for by_member_MB, _ in each]
        densities_and_weights.append((torch.cat(columns).T, each[0][1]))
    if not densities_and_weights:
        raise ValueError("`data` is empty: there are no rows to choose weights by.")
    densities, counts = zip(*densities_and_weights, strict=True)
    return torch.cat(densities), torch.cat(counts)


def _by_member(functions: Functions, members: int, batch: Batch, chunk_size: int) -> tuple[Tensor, Tensor]:
    """Return log densities of the rows of a batch under each member, float64 (M, B), and how often they count, (B,)."""
    outputs_SBK = functions(batch.inputs, chunk_size=chunk_size)
    judged = scored(functions.model.likelihood, outputs_SBK[0], batch.targets)
    judged.likelihood.check(outputs_SBK[0], judged.targets)
    parameters = broadcasting(functions.parameters, outputs_SBK)
    log_prob_SB = judged.likelihood.log_prob(outputs_SBK, judged.targets, parameters).double().cpu()
    log_prob_SMB = log_prob_SB.unflatten(0, (-1, members))
    weights_B = torch.ones(batch.size) if judged.row_weights is None else judged.row_weights.cpu()
    return torch.logsumexp(log_prob_SMB, 0) - math.log(len(log_prob_SMB)), weights_B.double()


def _averaged(by_member_MB: Tensor) -> Tensor:
    return (torch.logsumexp(by_member_MB, 0) - math.log(len(by_member_MB))).unsqueeze(0)
