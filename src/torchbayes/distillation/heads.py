r"""Heads: what a student says of each input, what it learns it from, and the loss. All losses are 0 at a perfect copy.

Of S functions f_s the teacher gives at each input the moments that a head repeats; the student's outputs η are

    dirichlet   classes: log α.                       KL(p̄ ‖ q̄) + (√I_q − √I_p)²
    gaussian    classes, counts and others: means and raw standard deviations of the outputs f, independent given x,
                f_k = μ_k + σ_k ε.                    Σ_k KL(N(m_k, v_k) ‖ N(μ_k, σ_k²)), and for classes the above
    gaussian    numbers with normal noise: mean, noise a and variance e of the mean.
                                                      KL(N(m, a + e) ‖ N(μ, a_q + e_q)) + (√e_q − √e)²/(a + e)

p̄ and I are mean probabilities and mutual information, m and v mean and variance over draws; the logits of each draw
are centred, as softmax does not see their mean. A Dirichlet has one number, α₀, for all of its spread: with mutual
information met, the variances of the probabilities are not. A Gaussian head has one for every class. Roots compare
small informations in proportion. They enter as Hellinger distances do, in the units of the divergence.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, distributions
from torch.distributions import Distribution

from torchbayes.model.likelihoods import Categorical, HeteroscedasticGaussian, Likelihood, Parameters
from torchbayes.model.likelihoods.dirichlet import Dirichlet, mutual_information
from torchbayes.model.likelihoods.protocol import NONE, Learned, log_mean_exp
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.posteriors.modules.summary import summary
from torchbayes.predictive.average import Predictive

NODES = 64
"""Values of ε at which a Gaussian over outputs is averaged."""
_LEAST = 1e-4  # standard deviation of an output, and relative variance of a number, that no head goes below
_TINY = 1e-10


class Reading(NamedTuple):
    """A student's outputs as those of a mixture: what `Predictive` and `summary` take."""

    outputs_SBK: Tensor
    spread: Tensor | None = None


@dataclass(frozen=True)
class Head(Likelihood):
    """A likelihood of a teacher's moments: log p is minus the loss, `scale` times.

    Attributes:
        scale: factor of the loss, which held-out rows see: they take lengths that differ by .02 as equally good.
        class_axis: of the network's outputs, as of `Categorical`.
    """

    name: ClassVar[str]
    width: ClassVar[int]  # outputs of the student for each output of the teacher

    scale: float = 1000.0
    class_axis: int = field(default=-1, kw_only=True)

    @abstractmethod
    def moments(self, predictive: Predictive) -> Tensor:
        """Return what the student learns of a teacher's predictive, (B, ...), with moments along the last axis."""

    @abstractmethod
    def loss(self, outputs: Tensor, moments: Tensor) -> Tensor:
        """Return the loss at each place, (..., B, ...), in nats, of outputs (..., B, ..., K)."""

    @abstractmethod
    def likelihood(self, teacher: Likelihood) -> Likelihood:
        """Return the likelihood that turns a reading into predictions."""

    @abstractmethod
    def read(self, outputs: Tensor, nodes_JK: Tensor) -> Reading:
        """Return outputs (B, ..., K) as those of a mixture, (J or 1, B, ..., K)."""

    def parameters(self) -> Mapping[str, Learned]:
        return {}

    def distribution(self, outputs: Tensor, parameters: Parameters = NONE) -> Distribution:
        """Return a point mass in the place of a distribution of moments, which the loss does not need."""
        return distributions.Normal(outputs, torch.ones_like(outputs), validate_args=False)

    def log_prob(self, outputs: Tensor, targets: Tensor, parameters: Parameters = NONE) -> Tensor:
        loss = self.loss(outputs, targets)
        places = targets.ndim - 2  # axes between rows and moments
        return -self.scale * (loss.flatten(-places).sum(-1) if places else loss)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.shape[:-1] != targets.shape[:-1]:
            raise ValueError(
                f"the student must give outputs (..., K) at the {tuple(targets.shape[:-1])} places of the teacher; got "
                f"{tuple(outputs.shape)}."
            )
        if not targets.isfinite().all():
            raise ValueError("the teacher's predictions hold NaN or infinite values. Look at `predict` of its inputs.")


@dataclass(frozen=True)
class DirichletHead(Head):
    """Classes, as a Dirichlet over their probabilities: mean and mutual information."""

    name = "dirichlet"
    width = 1

    def moments(self, predictive: Predictive) -> Tensor:
        return _class_moments(predictive)

    def loss(self, outputs: Tensor, moments: Tensor) -> Tensor:
        return _class_loss(outputs.log_softmax(-1), mutual_information(outputs), moments)

    def likelihood(self, teacher: Likelihood) -> Likelihood:
        return Dirichlet(ignore_index=getattr(teacher, "ignore_index", None), class_axis=self.class_axis)

    def read(self, outputs: Tensor, nodes_JK: Tensor) -> Reading:
        return Reading(outputs.unsqueeze(0))


@dataclass(frozen=True)
class OutputsHead(Head):
    """Outputs of any likelihood as independent Gaussians: mean and variance of each, and for classes of what they give.

    Attributes:
        classes: whether the outputs are logits of classes.
        share: weight of the divergence of outputs where probabilities have a loss of their own.
    """

    name = "gaussian"
    width = 2

    classes: bool = False
    share: float = 0.1

    def moments(self, predictive: Predictive) -> Tensor:
        outputs_SBK = predictive.outputs_SBK
        if self.classes:
            outputs_SBK = outputs_SBK - outputs_SBK.mean(-1, keepdim=True)
        mean, variance = outputs_SBK.mean(0), outputs_SBK.var(0, correction=0)
        further = [_class_moments(predictive)] if self.classes else []
        return torch.cat([mean, variance, *further], dim=-1)

    def loss(self, outputs: Tensor, moments: Tensor) -> Tensor:
        mean, std = _gaussian(outputs)
        middle, variance, further = moments.split([mean.shape[-1]] * 2 + [moments.shape[-1] - 2 * mean.shape[-1]], -1)
        away = mean - mean.mean(-1, keepdim=True) if self.classes else mean
        ratio = variance / std.square()
        least = ratio.clamp_min(_LEAST**2)
        apart = 0.5 * (ratio - 1 - least.log() + ((away - middle) / std).square()).sum(-1)
        if not self.classes:
            return apart
        log_probs = self.read(outputs, normal_nodes(mean.shape[-1]).to(mean)).outputs_SBK.log_softmax(-1)
        log_mean = log_mean_exp(log_probs)
        information = (log_probs.exp() * (log_probs - log_mean)).sum(-1).mean(0)
        return self.share / mean.shape[-1] * apart + _class_loss(log_mean, information, further)

    def likelihood(self, teacher: Likelihood) -> Likelihood:
        return teacher

    def read(self, outputs: Tensor, nodes_JK: Tensor) -> Reading:
        mean, std = _gaussian(outputs)
        nodes = nodes_JK.view(len(nodes_JK), *[1] * (mean.ndim - 1), mean.shape[-1])
        return Reading(mean + std * nodes)


@dataclass(frozen=True)
class NumbersHead(Head):
    """Numbers with normal noise: mean, variance of the noise and variance of the mean."""

    name = "gaussian"
    width = 3

    def moments(self, predictive: Predictive) -> Tensor:
        return torch.cat([predictive.mean, predictive.aleatoric, predictive.epistemic], dim=-1)

    def loss(self, outputs: Tensor, moments: Tensor) -> Tensor:
        mean, raw, raw_epistemic = outputs.chunk(3, dim=-1)
        middle, aleatoric, epistemic = moments.chunk(3, dim=-1)
        total, between = aleatoric + epistemic, F.softplus(raw_epistemic)
        variance = F.softplus(raw) + HeteroscedasticGaussian().floor + between
        ratio = total / variance
        apart = 0.5 * (ratio - 1 - ratio.log() + (mean - middle).square() / variance)
        return (apart + (_root(between) - _root(epistemic)).square() / total).sum(-1)

    def likelihood(self, teacher: Likelihood) -> Likelihood:
        return HeteroscedasticGaussian()

    def read(self, outputs: Tensor, nodes_JK: Tensor) -> Reading:
        mean, raw, raw_epistemic = outputs.chunk(3, dim=-1)
        return Reading(torch.cat([mean, raw], dim=-1).unsqueeze(0), F.softplus(raw_epistemic).unsqueeze(0))


@lru_cache(maxsize=8)
def normal_nodes(outputs: int, count: int = NODES) -> Tensor:
    """Return J values of K independent standard normals, (J, K), float64: a Sobol sequence and its mirror image.

    Each column has mean 0 and variance 1.
    """
    uniform = torch.quasirandom.SobolEngine(outputs, scramble=True, seed=0).draw(count // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(_TINY, 1 - _TINY))
    nodes_JK = torch.cat([half, -half])
    return nodes_JK / nodes_JK.square().mean(0).sqrt()


def _gaussian(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of outputs."""
    mean, raw = outputs.chunk(2, dim=-1)
    return mean, F.softplus(raw) + _LEAST


def _class_moments(predictive: Predictive) -> Tensor:
    """Return mean probabilities and mutual information, (B, ..., K + 1)."""
    said = summary(predictive.distribution)
    return torch.cat([said["probs"], said["mutual_information"].unsqueeze(-1)], dim=-1)


def _class_loss(log_probs: Tensor, information: Tensor, moments: Tensor) -> Tensor:
    """Return KL(p̄ ‖ q̄) + (√I_q − √I_p)², (...), in nats."""
    probs = moments[..., :-1]
    divergence = (torch.special.xlogy(probs, probs) - probs * log_probs).sum(-1)
    return divergence + (_root(information) - _root(moments[..., -1])).square()


def _root(values: Tensor) -> Tensor:
    """Return a root whose slope is finite at 0; rounding may have left less than 0."""
    return (values.clamp_min(0.0) + _TINY).sqrt()


def head_of(word: str, predictive: Predictive) -> Head:
    """Return the head that repeats a teacher's predictive: by name, or "auto".

    A ValueError if its likelihood has none, a head is not for it, or the predictive is of a single function, which has
    no mutual information.
    """
    likelihood, kind = unweighted(predictive.likelihood), predictive.distribution
    name = type(likelihood).__name__
    if word == "dirichlet" and not isinstance(likelihood, Categorical):
        raise ValueError(f"the head 'dirichlet' is for the Categorical likelihood; this one is {name}. Use 'gaussian'.")
    if predictive.draws == 1 and predictive.function_variance is None:
        raise ValueError(
            "the teacher is a single function, or a closed form without draws, and says nothing of its uncertainty. "
            "Give `draws`, such as 30, or a posterior of several members."
        )
    axis = int(getattr(likelihood, "class_axis", -1))
    if word == "dirichlet":
        return DirichletHead(class_axis=axis)
    if isinstance(kind, distributions.Normal):
        return NumbersHead()
    if predictive.parameters or predictive.function_variance is not None:
        raise ValueError(
            f"{name} has learned parameters, or outputs in closed form, and no head repeats it. Normal noise, "
            f"Categorical, Bernoulli, Poisson and StudentT have one."
        )
    return OutputsHead(classes=isinstance(likelihood, Categorical), class_axis=axis)


HEADS: dict[str, type[Head]] = {kind.__name__: kind for kind in (DirichletHead, OutputsHead, NumbersHead)}
"""Every head, by its name in files."""
