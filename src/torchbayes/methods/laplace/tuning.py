"""tune: choose the prior precision and the noise scale of a Laplace posterior, by the evidence or on held-out data.

With curvature H in units of the prior, eigenvalues λ, factors d_g on the prior's precision of groups g of weights, and
β the factor on the noise precision of a regression, the Laplace evidence is, up to a constant,

    2 log p(D) = Σ_g [ n_g log d_g − d_g U_g ] + n log β − β R − Σ_i log(β λ_i + d_g(i))

for n_g weights of squared size U_g in units of the prior, and n target values with the squared error R in units of the
noise. It is concave in (log d, log β), so Newton's method finds the one maximum from the eigenvalues, without a pass
over data (MacKay 1992). Where a group cuts through the eigenvectors, as layers do through a dense matrix, log det
(βH + diag d) and the marginal variances replace the eigenvalues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import check_choice, check_flags, check_kind
from torchbayes.curvature.exact import PARAMETERS_PER_TARGET
from torchbayes.linalg import Curvature
from torchbayes.linalg.dropped import dropped
from torchbayes.metrics import nll
from torchbayes.model.likelihoods.protocol import scored
from torchbayes.model.likelihoods.weighted import fixed_noise
from torchbayes.model.model import PREFIX, Model
from torchbayes.model.sources.sources import as_source
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.laplace import LaplacePosterior, having_noise
from torchbayes.posteriors.posterior import on_trial
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.linearised import Linearised
from torchbayes.predictive.predict import predict

Groups = Literal["model", "scalar", "layer", "weight"]
_WIDEST = 25.0  # largest |log factor|; beyond it nothing changes in single precision
_WIDE = math.log(1e4)  # largest |log factor| that held-out data may choose
_DOUBT = "its noise scale was changed"
_END = "its prior was changed"
_WINDOW, _WINDOWS = 3.0, 20  # largest |change of a log factor| in one descent, and the number of descents


@dataclass(frozen=True)
class EvidenceProblem:
    """The evidence as a function of log factors."""

    curvature: Curvature  # H in units of the prior
    group_D: Tensor  # group of each weight, int64; −1 for weights whose prior stays
    squares_MD: Tensor  # r (w − μ)², squared size of each weight in units of the prior
    count: float  # n, number of target values, weighted as their rows; 0 if the noise stays
    errors_M: Tensor  # R
    free: bool  # whether the groups' factors are free; else they stay 1

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.group_D.max()) + 1

    @cached_property
    def squares_G(self) -> Tensor:
        """U, squared size of each group over all members, float64, on the CPU."""
        return self.totals(self.squares_MD).cpu()

    def totals(self, values_MD: Tensor) -> Tensor:
        """Return sums over the weights of each group and over members, float64 (G,)."""
        chosen = self.group_D >= 0
        sums_G = torch.zeros(self.groups, dtype=torch.float64, device=values_MD.device)
        return sums_G.index_add_(0, self.group_D[chosen], values_MD[:, chosen].sum(0).double())

    def spectra(self) -> list[Tensor] | None:
        """Return the eigenvalues of each group, over all members; None where they mix groups or some are unknown."""
        if dropped(self.curvature, torch.ones_like(self.group_D)).logdet_M.any():
            return None
        by_group: list[list[Tensor]] = [[] for _ in range(self.groups)]
        for part in self.curvature.parts():
            groups = self.group_D[part.where]
            if part.single:
                for group in groups.unique().tolist():
                    if group >= 0:
                        by_group[group].append(part.eigenvalues_ME[:, groups == group].flatten())
            elif (groups != groups[0]).any():
                return None
            elif groups[0] >= 0:
                by_group[int(groups[0])].append(part.eigenvalues_ME.flatten())
        return [torch.cat(values).clamp_min(0) for values in by_group]


@undisturbed
@explained()
def tune(
    posterior: LaplacePosterior, *, prior: Groups = "scalar", noise: bool = False, on: Any = None
) -> LaplacePosterior:
    """Choose prior precision and noise scale, at the same modes and without a new pass over the training data.

    The prior stays as it is up to a factor on its precision: one for all weights, one for each layer (a module,
    weights and biases together) or one for each weight. A prior that is not normal is taken as the normal with its
    curvature. Learned parameters of the likelihood keep their prior. The chosen prior has another mode, with another
    curvature and evidence. Alternating tuning and training therefore need not raise the evidence every time, and the
    factor of a layer that the data do not constrain may become extreme.

    The noise is chosen by the exact curvature (`LaplacePosterior.exact`), with a scalar factor on the prior.
    Structures that leave correlations out may count more parameters as determined by the data than there are targets,
    and with their evidence 50 % intervals on tables of 100 to 500 rows covered 85 to 100 %. For networks of more than
    1,024 weights, and where three targets or more per weight rule that out, the structure's evidence is used; the
    posterior reports where that is in doubt. At a mode under a noise scale far too large, the residuals are those of a
    network that does not fit yet: train again under the tuned model, or use `OnlineLaplace`.

    Args:
        posterior: as `fit` with `Laplace` gives it.
        prior: which factors are free: "model" (none), "scalar", "layer", or, for diagonal curvature, "weight".
        noise: whether the noise scale of a regression with a fixed one is free.
        on: held-out data, (inputs, targets) or a loader: maximise the log likelihood that the linearised predictive
            gives them, weighted as their rows are, over one factor ("scalar") and the noise precision, each within
            1e-4 to 1e4; a factor at a bound is reported in `problems`. The mode stays, so the factor only scales the
            covariance: do not train under a prior chosen in this way. None maximises the evidence.

    Returns:
        The posterior under the chosen prior and noise; `model` has both.

    Raises:
        ValueError: if the prior is flat or correlated, the model is tempered, or the combination is not supported.
        TypeError: if `noise` is asked for and the likelihood has no fixed noise scale.
    """
    check_kind(LaplacePosterior, "a Laplace posterior", posterior=posterior)
    check_choice(("model", "scalar", "layer", "weight"), prior=prior)
    check_flags(noise=noise)
    if posterior.model.temperature != 1:
        raise ValueError(f"the evidence is that of T = 1; the model has temperature {posterior.model.temperature}.")
    warn_of(posterior.problems)
    if prior == "model" and not noise:
        return posterior
    if noise:
        having_noise(posterior.model, 2.0)  # raises if there is no fixed noise
    outdated = (*([] if prior == "model" else [_END]), *([_DOUBT] if noise else []))
    problems = tuple(problem for problem in posterior.problems if not problem.startswith(outdated))
    posterior = replace(posterior, problems=problems)
    if on is not None:
        return _by_validation(posterior, prior, noise, on)
    if (posterior.strength_D == 0).any():
        raise ValueError("the evidence needs a proper prior; this one is flat or correlated for some weights.")
    return _by_evidence(posterior, prior, noise)


def _by_evidence(posterior: LaplacePosterior, prior: Groups, noise: bool) -> LaplacePosterior:
    """Return the posterior at the maximum of the evidence, for the noise by the exact curvature if it is known."""
    if prior == "weight":
        _check_single(posterior)
    if noise and (posterior.exact is not None or prior == "weight"):  # first the noise, with one factor, then the prior
        from_equal = prior in {"layer", "weight"}  # all ratios of precisions are chosen, so start from equal ones
        strength_D = torch.ones_like(posterior.strength_D) if from_equal else posterior.strength_D
        curvature = posterior.curvature if posterior.exact is None else posterior.exact
        scalar_problem = replace(posterior, curvature=curvature, exact=None, strength_D=strength_D)
        chosen = _by_evidence(scalar_problem, "model" if prior == "model" else "scalar", True)
        posterior = posterior.with_noise(chosen.noise_scale / posterior.noise_scale).with_problems(chosen.problems)
        return posterior if prior == "model" else _by_evidence(posterior, prior, False)
    problem = evidence_problem(posterior, prior, noise=noise)
    if prior == "weight":
        return _by_weight(posterior, problem)
    spectra = problem.spectra()
    start = torch.zeros(problem.groups, dtype=torch.float64)
    log_d_G, log_beta = _descend(problem) if spectra is None else newton(spectra, problem, start)
    tuned = _changed(posterior, problem.group_D, log_d_G, log_beta)
    return _doubted(tuned) if noise else tuned


def _doubted(tuned: LaplacePosterior) -> LaplacePosterior:
    """Return the posterior, with a problem if its curvature cannot determine the noise.

    With γ parameters determined by n targets the noise variance is R/(n − γ). A structure that leaves correlations out
    counts too many, which matters where γ is a good part of n.
    """
    gamma, count = float(tuned.effective_parameters().max()), tuned.num_targets
    if tuned.curvature.correlations == "all" or gamma < PARAMETERS_PER_TARGET * count:
        return tuned
    return tuned.with_problems([
        f"{_DOUBT} by a factor {tuned.noise_scale:.3g} by a curvature without all correlations, which counts "
        f"{gamma:.0f} parameters as determined by {count:g} targets, so that it is probably too large (use "
        f"structure='dense', or tune on held-out data)"
    ])


def evidence_problem(posterior: LaplacePosterior, prior: Groups, *, noise: bool) -> EvidenceProblem:
    """Return the evidence of a posterior as a function of the factors that are free, as for `tune`."""
    model, mean_MD = posterior.model, posterior.mean_MD
    locs = model.prior.locs().to(mean_MD)
    # in units of the current prior, so that factors multiply it
    curvature = posterior.curvature.in_units(posterior.strength_D.rsqrt())
    squares_MD = posterior.reference_MD * posterior.strength_D * (mean_MD - locs) ** 2
    count, errors_M = 0, torch.zeros(len(mean_MD), dtype=torch.float64)
    if noise:
        count = posterior.num_targets
        scales = fixed_noise(model.likelihood)
        constant = sum(math.log(s * math.sqrt(2 * math.pi)) for s in scales) / len(scales)
        errors_M = -2 * (posterior.log_likelihood_M.cpu() + count * constant)
    return EvidenceProblem(
        curvature, _groups(model, prior).to(mean_MD.device), squares_MD, count, errors_M, prior != "model"
    )


def _groups(model: Model, prior: Groups) -> Tensor:
    """Return the group of each weight: its module, the one of all weights, or itself.

    −1 for weights of the likelihood.
    """
    modules: dict[str, int] = {}
    groups = []
    for name, size in zip(model.layout.names, model.layout.sizes, strict=True):
        if name.startswith(PREFIX):
            groups.append(torch.full((size,), -1))
        elif prior == "weight":
            groups.append(torch.arange(size) + sum(len(f) for f in groups))
        else:
            module = name.rpartition(".")[0] if prior == "layer" else ""
            groups.append(torch.full((size,), modules.setdefault(module, len(modules))))
    return torch.cat(groups)


def newton(spectra: list[Tensor], problem: EvidenceProblem, start: Tensor, *, steps: int = 60) -> tuple[Tensor, float]:
    """Return the log factors (G,) and log β at the maximum of the evidence, from the eigenvalues of each group.

    With t = d/(βλ + d) the gradient is ½ (n_g − d U_g − Σ t) and ½ (n − β R − Σ (1 − t)), and the second derivatives
    are made of Σ t (1 − t). No logarithm of an eigenvalue is taken. `start` are the initial log factors, (G,).
    """
    sizes_G = torch.tensor([len(s) for s in spectra], dtype=torch.float64)
    squares_G, errors = problem.squares_G, float(problem.errors_M.sum())
    members, point = len(problem.squares_MD), torch.cat([start, torch.zeros(1, dtype=torch.float64)])
    for _ in range(steps):
        factors, beta = point[:-1].exp(), math.exp(float(point[-1]))
        shares = [(beta * s).add_(d).reciprocal_().mul_(d) for d, s in zip(factors.tolist(), spectra, strict=True)]
        prior_G = torch.stack([t.sum(dtype=torch.float64) for t in shares]).cpu()
        bend_G = prior_G - torch.stack([t.dot(t).double() for t in shares]).cpu()
        gradient = torch.cat([sizes_G - factors * squares_G - prior_G, torch.zeros(1, dtype=torch.float64)])
        hessian = torch.diag(torch.cat([factors * squares_G + bend_G, torch.ones(1, dtype=torch.float64)]))
        if problem.count:
            gradient[-1] = members * problem.count - beta * errors - (sizes_G - prior_G).sum()
            hessian[-1, -1] = beta * errors + bend_G.sum()
            hessian[-1, :-1] = hessian[:-1, -1] = -bend_G
        if not problem.free:
            gradient[:-1], hessian[:-1, -1], hessian[-1, :-1] = 0.0, 0.0, 0.0
        hessian.diagonal().clamp_min_(1e-12)
        move = torch.linalg.solve(hessian, gradient).clamp(-2.0, 2.0)
        point = (point + move).clamp(-_WIDEST, _WIDEST)
        if float(move.abs().max()) < 1e-9:
            break
    return point[:-1], float(point[-1])


def _descend(problem: EvidenceProblem) -> tuple[Tensor, float]:
    """Return the log factors and log β if groups cut through the eigenvectors, by L-BFGS with Cholesky factors."""
    from scipy.optimize import minimize  # slow to import

    members, sizes_G = len(problem.squares_MD), problem.totals(torch.ones_like(problem.squares_MD)).cpu()
    exact = problem.curvature.positive()
    squares_G, errors = problem.squares_G, float(problem.errors_M.sum())

    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        log_d_G, log_beta = torch.as_tensor(point[:-1]), float(point[-1])
        curvature, precision_D = exact.scaled(math.exp(log_beta)), _spread(problem.group_D, log_d_G)
        covariance, outside = curvature.covariance(precision_D), dropped(curvature, precision_D)
        factors = log_d_G.exp()
        prior_G = problem.totals(precision_D * covariance.diagonal() - outside.shares_MD).cpu()
        value = (sizes_G * log_d_G - factors * squares_G).sum()
        value = value + (covariance.logdet() - outside.logdet_M).sum().cpu()
        gradient = torch.cat([sizes_G - factors * squares_G - prior_G, torch.zeros(1, dtype=torch.float64)])
        if problem.count:
            count, beta = members * problem.count, math.exp(log_beta)
            value = value + count * log_beta - beta * errors
            total = members * problem.squares_MD.shape[1] - prior_G.sum()
            gradient[-1] = count - beta * errors - total
        return -float(value), -gradient.numpy()

    point, free = np.zeros(problem.groups + 1), np.array([problem.free] * problem.groups + [problem.count > 0])
    for _ in range(_WINDOWS):  # windows, because an unbounded line search goes where the matrix is numerically singular
        low, high = (np.clip(point + side * _WINDOW * free, -_WIDEST, _WIDEST) for side in (-1, 1))
        bounds = list(zip(low, high, strict=True))
        result = minimize(negative, point, jac=True, method="L-BFGS-B", bounds=bounds,
                         options={"ftol": 1e-15, "gtol": 1e-8})  # fmt: skip
        before, point = point, result.x
        if (abs(point - before) < 0.99 * _WINDOW).all():
            break
    return torch.as_tensor(point[:-1]), float(point[-1])


def _check_single(posterior: LaplacePosterior) -> None:
    """Raise ValueError unless every weight can have its own precision: with diagonal curvature and one mode."""
    if posterior.curvature.correlations != "none" or posterior.members > 1:
        raise ValueError(
            f"a prior precision for every weight is chosen for one mode with diagonal curvature; got "
            f"{posterior.curvature.kind!r} and {posterior.members}. Use structure='diagonal', or prior='layer'."
        )


def _by_weight(posterior: LaplacePosterior, problem: EvidenceProblem) -> LaplacePosterior:
    """Return the posterior with a precision for every weight: the root of U d² + H U d − H = 0."""
    values, squares = problem.curvature.diagonal()[0].double(), problem.squares_MD[0].double()
    product = values * squares
    # 2H / (HU + √((HU)² + 4HU)) is stable where the weight is near its prior mean
    factors = 2 * values / (product + (product**2 + 4 * product).sqrt())
    fixed = problem.group_D < 0
    bound = math.exp(_WIDEST)
    log_d = torch.where(fixed, 1.0, factors.nan_to_num(nan=1.0, posinf=bound).clamp(1 / bound, bound)).log()
    return posterior.with_strength(posterior.strength_D * log_d.exp())


def _spread(group_D: Tensor, log_d_G: Tensor) -> Tensor:
    """Return the factor of each weight, (D,)."""
    factors = torch.cat([log_d_G.exp(), torch.ones(1, dtype=torch.float64)]).to(group_D.device)
    return factors[group_D]  # group −1 is the last


def _changed(posterior: LaplacePosterior, group_D: Tensor, log_d_G: Tensor, log_beta: float) -> LaplacePosterior:
    factor_D = _spread(group_D, log_d_G).to(posterior.mean_MD)
    changed = posterior.with_strength(posterior.strength_D * factor_D) if log_d_G.any() else posterior
    return changed if log_beta == 0 else changed.with_noise(math.exp(-0.5 * log_beta))


def _by_validation(posterior: LaplacePosterior, prior: Groups, noise: bool, data: Any) -> LaplacePosterior:
    """Return the posterior whose linearised predictive gives held-out data the largest log likelihood.

    Raises ValueError if there is more than one factor to choose.
    """
    from scipy.optimize import minimize  # slow to import

    if prior in {"layer", "weight"}:
        raise ValueError(f"held-out data choose one factor; got prior={prior!r}. Use prior='scalar', or the evidence.")
    group_D = _groups(posterior.model, prior).to(posterior.mean_MD.device)
    source = as_source(posterior.model, data, 1024)
    source.check()
    rows = source.rows()

    def at(point: np.ndarray) -> LaplacePosterior:
        log_d = torch.as_tensor(point[:1]) if prior == "scalar" else torch.zeros(1, dtype=torch.float64)
        return _changed(posterior, group_D, log_d, float(point[-1]) if noise else 0.0)

    def negative(point: np.ndarray) -> float:
        predictive = predict(Linearised(on_trial(at(point))), rows.inputs)
        weights = scored(predictive.likelihood, predictive.outputs_SBK[0], rows.targets).row_weights
        return float(nll(predictive.log_prob(rows.targets), weights_B=weights))

    grid = np.linspace(-_WIDE, _WIDE, 9)
    starts = [np.array([g, 0.0] if noise and prior == "scalar" else [g]) for g in grid]
    best = min(starts, key=negative)
    simplex = np.vstack([best, best + np.eye(len(best))])
    options = {"xatol": 1e-2, "fatol": 1e-6, "maxiter": 100, "initial_simplex": simplex}
    bounds = [(-_WIDE, _WIDE)] * len(best)
    log_factors = minimize(negative, best, method="Nelder-Mead", bounds=bounds, options=options).x
    changed = (*([_END] if prior == "scalar" else []), *([_DOUBT] if noise else []))
    return at(log_factors).with_problems(
        f"{text} by a factor {math.exp(log):.0e} on the precision, at which the search on held-out data ends, so that "
        f"they do not determine it (tune by the evidence, or on other rows)"
        for text, log in zip(changed, log_factors, strict=True)
        if abs(log) > _WIDE - options["xatol"]
    )
