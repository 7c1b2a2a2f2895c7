"""Laplace posteriors: Gaussians at modes, with curvature and prior stored apart, so that the prior can be changed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from torchbayes.linalg import Curvature, DenseCurvature, Diagonal, Scaled, restore_curvature
from torchbayes.linalg.added import precision_trace
from torchbayes.linalg.dropped import Dropped, dropped
from torchbayes.linalg.structure import is_diagonal, unscaled
from torchbayes.model.likelihoods.weighted import fixed_noise, having_scales, rescaled
from torchbayes.model.model import Model, having
from torchbayes.model.priors.joint import Joint, like
from torchbayes.posteriors.gaussian import Gaussian, check_gaussian
from torchbayes.posteriors.posterior import Posterior, readable
from torchbayes.posteriors.problems import warn_of

_TENSORS = ("mean_MD", "reference_MD", "strength_D", "log_likelihood_M")
_NUMBERS = ("num_data", "num_targets", "noise_scale")


@readable
@dataclass(frozen=True, repr=False)
class LaplacePosterior(Posterior):
    """q(w) = (1/M) Σ_m N(w; w_m, P_m⁻¹), P_m = diag(√r) (H_m + diag(d)) diag(√r).

    r is the precision of the prior under which the modes were found, and H the curvature of the likelihood in units
    of r. d is a factor on the prior's precision, 1 as fitted; tuning changes it, and with it the prior of `model`.

    Attributes:
        mean_MD: the modes w_m.
        curvature: H, times 1/T where the likelihood is tempered.
        reference_MD: r; 1 where the prior is flat or is part of H.
        strength_D: d; 0 where the prior is flat or is part of H.
        log_likelihood_M: Σ_n log p(y_n|f(x_n)) at the modes, float64, in nats.
        num_data: N, rows.
        num_targets: number of target values, weighted as their rows; without weights N times the values of one row.
        noise_scale: factor on the noise scale of a tuned regression; 1 as fitted.
        exact: H as a dense matrix, by which the noise is tuned; None where there is no noise to tune, H is dense
            already, or the weights are too many, or few compared with the targets.
        layer_support: the support of the network's layers over which the covariance is, as `LayerSupport.text`.
        prior_chosen: whether the prior of `model` is the normal one of precision r ∘ d instead of that of the
            modes.
        noise_chosen: whether the noise of `model` differs from that of the modes.
    """

    mean_MD: Tensor
    curvature: Curvature
    reference_MD: Tensor
    strength_D: Tensor
    log_likelihood_M: Tensor
    num_data: int
    num_targets: float
    noise_scale: float = 1.0
    exact: DenseCurvature | None = None
    layer_support: str = ""
    prior_chosen: bool = False
    noise_chosen: bool = False

    kind = "laplace"
    of_linearised = True

    @property
    def members(self) -> int:
        return len(self.mean_MD)

    @cached_property
    def gaussian(self) -> Gaussian:
        """The same distribution as a mixture of Gaussians with explicit covariances.

        Raises:
            ValueError: if a precision is not positive definite, or the data do not determine weights with a flat prior.
        """
        flat_D, prior = self.model.prior.flat, self.model.prior
        if flat_D.any():
            lost_D = self.curvature.undetermined(self.strength_D).any(0).cpu() & flat_D
            if lost_D.any():
                raise ValueError(
                    f"the data do not determine {prior.names(lost_D)}, whose prior is flat, so that their variance is "
                    f"infinite. Give them a proper prior such as Normal(1.0), leave out inputs that are constant or "
                    f"combinations of others, or use double precision, which tells smaller curvatures from none."
                )
        covariance = Scaled(self.reference_MD.rsqrt(), self.curvature.covariance(self.strength_D))
        least = float(covariance.diagonal().min())
        if not least > 0:
            raise ValueError(
                f"the posterior precision is not positive definite: a marginal variance would be {least:g}. Use a "
                f"prior that is not flat, or a curvature that cannot be negative, such as 'ggn'."
            )
        return Gaussian(self.model, self.mean_MD, covariance)

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        return self.gaussian.sample(draws, seed=seed)

    def log_prob(self, weights: Tensor) -> Tensor:
        """Return log q(w) in nats, (...), for weights (..., D)."""
        return self.gaussian.log_prob(weights)

    def log_evidence(self) -> Tensor:
        """Return the Laplace estimate of the log evidence of each mode, float64 (M,), in nats.

            log p(D) ≈ log p(D|w*) + log p(w*) + (D/2) log 2π − ½ log det P

        Exact where the posterior is Gaussian. MacKay (1992).

        Raises:
            ValueError: if the posterior is tempered, or the prior is flat somewhere and so not normalised.
        """
        if self.model.temperature != 1:
            raise ValueError(f"the evidence is that of T = 1; the model has temperature {self.model.temperature}.")
        prior = self.model.prior
        if prior.flat.any():
            raise ValueError(
                f"the prior is flat for {prior.names(prior.flat)}, so there is no evidence. Use a proper prior."
            )
        size = self.mean_MD.shape[1]
        log_prior_M = self.model.log_prior(self.mean_MD).double()
        _, unitless = unscaled(self.gaussian.covariance)
        discarded = dropped(self.curvature, self.strength_D)
        _warn_of(discarded)
        logdet_M = unitless.logdet() - self.reference_MD.double().log().sum(-1) - discarded.logdet_M
        return self.log_likelihood_M + log_prior_M + size / 2 * math.log(2 * math.pi) + 0.5 * logdet_M

    def effective_parameters(self) -> Tensor:
        """Return how many weights the data determine at each mode, γ = D − tr P₀ P⁻¹, P₀ the prior's part of P.

        Float64 (M,), between 0 and D; weights with a flat prior count fully. MacKay (1992).
        """
        joint, covariance = self.model.prior.joint, self.gaussian.covariance
        if joint is not None and not joint.is_independent:
            share = self.model.scales(1, 1).prior
            return self.strength_D.numel() - share * precision_trace(like(joint, self.mean_MD).covariance, covariance)
        dropped_M = dropped(self.curvature, self.strength_D).shares_MD.sum(-1)
        prior_share_MD = covariance.diagonal().double() * (self.reference_MD * self.strength_D).double()
        return self.strength_D.numel() - prior_share_MD.sum(-1) + dropped_M

    def with_strength(self, strength_D: Tensor) -> LaplacePosterior:
        """Return the posterior under another prior precision, r ∘ d, at the same modes.

        The prior of its model is N(loc, 1/(r d)).

        Args:
            strength_D: positive factor d on the precision at the modes, (D,). Learned parameters of the likelihood
                keep their prior.

        Raises:
            ValueError: if a factor is not positive, or the prior is flat or correlated.
        """
        if not (strength_D > 0).all() or not torch.isfinite(strength_D).all():
            raise ValueError(f"prior precisions must be positive and finite; got {float(strength_D.min()):g}.")
        if (self.strength_D == 0).any():
            raise ValueError("the prior is flat or correlated for some weights, so there is no precision to change.")
        size, reference_D = self.model.network.layout.size, self.reference_MD[0]
        strength_D = torch.cat([strength_D.to(self.mean_MD)[:size], self.strength_D[size:]])
        if not torch.allclose(self.reference_MD[:, :size], reference_D[:size].expand(self.members, -1)):
            raise ValueError("the prior's precision differs between the modes. Use a normal prior, or one mode.")
        model = _having_precision(self.model, reference_D * strength_D)
        return replace(self, model=model, strength_D=strength_D, prior_chosen=True)

    def with_noise(self, factor: float) -> LaplacePosterior:
        """Return the posterior of a regression, and its model, with another noise scale, at the same modes.

        Args:
            factor: on the fixed noise scale of the likelihood.

        Raises:
            TypeError: if the likelihood has no fixed noise scale.
        """
        if factor == 1.0:
            return self
        model, scales = having_noise(self.model, factor), fixed_noise(self.model.likelihood)
        constant = sum(math.log(s * math.sqrt(2 * math.pi)) for s in scales) / len(scales) * self.num_targets
        errors_M = self.log_likelihood_M + constant
        return replace(
            self,
            model=model,
            noise_chosen=True,
            curvature=self.curvature.scaled(factor**-2),
            exact=self.exact and self.exact.scaled(factor**-2),
            log_likelihood_M=errors_M / factor**2 - constant - self.num_targets * math.log(factor),
            noise_scale=self.noise_scale * factor,
        )

    def tensors(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in _TENSORS}
        tensors |= {"exact": self.exact.matrix_MDD} if self.exact else {}
        return tensors | {f"curvature.{n}": t for n, t in self.curvature.tensors().items()}

    def settings(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in (*_NUMBERS, "layer_support")}
        noise = {"scales": list(fixed_noise(self.model.likelihood))} if self.noise_chosen else {}
        return {"curvature": self.curvature.kind, "tuned": self.prior_chosen, **numbers, **noise}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        parts = {n.removeprefix("curvature."): t for n, t in tensors.items() if n.startswith("curvature.")}
        if settings["tuned"]:
            model = _having_precision(model, tensors["reference_MD"][0] * tensors["strength_D"])
        factor, scales = settings["noise_scale"], tuple(settings.get("scales", ()))
        if scales:
            model = having(model, likelihood=having_scales(model.likelihood, scales))
        else:  # files of an earlier version may hold only the factor
            model = having_noise(model, factor)
        return cls(
            model,
            curvature=restore_curvature(settings["curvature"], parts),
            exact=DenseCurvature(tensors["exact"]) if "exact" in tensors else None,
            layer_support=settings.get("layer_support", settings.get("found", "")),  # its name in earlier files
            prior_chosen=settings["tuned"],
            noise_chosen=bool(scales) or factor != 1,
            **{name: tensors[name] for name in _TENSORS},
            **{name: settings[name] for name in _NUMBERS},
        )


def _having_precision(model: Model, precision_D: Tensor) -> Model:
    """Return the model with independent normal priors of these precisions around its own prior means.

    Learned parameters of the likelihood keep their prior.
    """
    size = model.network.layout.size
    locs = model.prior.locs().to(precision_D)[:size]
    return having(model, prior=Joint.independent(locs, 1 / precision_D[:size]))


def having_noise(model: Model, factor: float) -> Model:
    """Return the model of a regression with its fixed noise scale times `factor`; a TypeError if it has none."""
    return model if factor == 1.0 else having(model, likelihood=rescaled(model.likelihood, factor))


def _warn_of(left: Dropped) -> None:
    """Warn where a low rank leaves the evidence uncertain by more than a nat."""
    m = int(left.doubt_M.argmax())
    doubt, share = float(left.doubt_M[m]) / 2, float(left.logdet_M[m]) / 2
    if doubt > 1:
        warnings.warn(
            f"the directions that the low rank leaves out lower this log evidence by about {share:.3g} nats, give or "
            f"take {doubt:.2g}. Raise `rank`, or use another structure.",
            stacklevel=3,
        )


def as_prior(posterior: LaplacePosterior | Gaussian) -> Joint:
    """Return a Gaussian posterior of one mode as the prior of the next task; pass it to `Model` as `prior`.

    Raises:
        ValueError: if the posterior is a mixture.
    """
    check_gaussian(posterior)
    warn_of(posterior.problems)
    gaussian = posterior.gaussian
    if gaussian.members > 1:
        raise ValueError(
            f"a prior is one Gaussian; this posterior is a mixture of {gaussian.members}. Fit one mode, or choose one."
        )
    covariance = gaussian.covariance
    if is_diagonal(covariance):
        covariance = Diagonal(covariance.diagonal())
    return Joint(gaussian.mean_MD[0].clone(), covariance)
