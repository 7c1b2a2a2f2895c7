"""The factors of a likelihood on a network that is linear in its random weights: ℓ_n(g_n), g_n = A_n w, n = 1..N.

A factor has the outputs of a row that its likelihood takes together. Under Gaussian, Bernoulli, Probit, Poisson and
StudentT likelihoods that is each output by itself; under Categorical the differences of K class logits from one of
them, R = K − 1 numbers; under others all outputs of the row. A row of weight c is its factor c times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchbayes.checks import holds
from torchbayes.curvature.discovery import LayerSupport
from torchbayes.curvature.tangent import Tangent
from torchbayes.linalg import Diagonal
from torchbayes.methods.ep.beliefs import Sites
from torchbayes.methods.ep.tilted import MOST, Tilted, probit, tilted
from torchbayes.methods.protocol import DivergedError
from torchbayes.model.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson, Probit, StudentT
from torchbayes.model.likelihoods.protocol import counted
from torchbayes.model.likelihoods.weighted import unweighted
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.randomness.seeds import Purpose, generator

_APART = (Bernoulli, Gaussian, Poisson, Probit, StudentT)  # log p(y | f) is a sum over outputs
_TRIALS = 2  # random weights at which linearity is checked
_CHUNK = 2**24


@dataclass(frozen=True)
class Factors:
    """The factors of rows that count."""

    slopes_NRD: Tensor  # A, float64
    offset_NR: Tensor  # outputs at w = 0, from biases that are constants
    counts_N: Tensor  # c, positive
    likelihood: Likelihood  # of one row, without weights
    targets: Tensor  # one for each factor
    classes: bool  # whether the values are differences of logits
    shape: tuple[int, ...]  # of the outputs of a factor
    noise_N: Tensor  # standard deviation of normal noise; 1 under other likelihoods

    def exact(self, temperature: float) -> Sites | None:
        """Return the sites that are ℓ^(1/T) themselves, under normal noise; None under other likelihoods."""
        if not is_exact(self.likelihood):
            return None
        precision_N = 1 / (temperature * self.noise_N.square())
        apart_N = self.targets - self.offset_NR[:, 0]
        norm_N = (2 * math.pi * self.noise_N.square()).log() / temperature
        log_scale_N = -0.5 * (precision_N * apart_N.square() + norm_N)
        return Sites(precision_N[:, None, None], (precision_N * apart_N)[:, None], log_scale_N)

    def tilted(self, mean_nR: Tensor, root_nRR: Tensor, *, power: float, first: int = 0) -> Tilted:
        """Return the moments of ℓ^a N(g; m, L Lᵀ) for factors from number `first` on.

        See `torchbayes.methods.ep.tilted`.
        """
        if power == 1 and isinstance(self.likelihood, Probit) and holds(self.likelihood, "curvature_root"):
            where = slice(first, first + len(mean_nR))
            signs_n = 2 * self.targets[where].to(mean_nR) - 1
            return probit(signs_n, (mean_nR + self.offset_NR[where])[:, 0], root_nRR[:, 0, 0])
        return tilted(
            lambda values_QnR, some_n: self.log_prob(values_QnR, first + some_n), mean_nR, root_nRR, power=power
        )

    def log_prob(self, values_QnR: Tensor, where: Tensor) -> Tensor:
        """Return log ℓ, (Q, n), of the factors of some numbers (n,) at values (Q, n, R)."""
        outputs = values_QnR + self.offset_NR[where]
        if self.classes:
            outputs = torch.cat([outputs, torch.zeros_like(outputs[..., :1])], dim=-1)
        outputs = outputs.view(*outputs.shape[:2], *self.shape)
        return self.likelihood.log_prob(outputs, self.targets[where])


def is_exact(likelihood: Likelihood) -> bool:
    """Return whether sites are the factors themselves, so that one sweep is all there is to do."""
    plain = unweighted(likelihood)
    return isinstance(plain, Gaussian) and holds(plain, "curvature_root")


def check_likelihood(likelihood: Likelihood) -> None:
    """Raise ValueError if a likelihood has parameters of its own to infer."""
    if likelihood.parameters():
        raise ValueError(
            f"EP takes a likelihood whose parameters are known; {unweighted(likelihood)!r} learns "
            f"`{next(iter(likelihood.parameters()))}`. Give its value, such as likelihoods.Gaussian(0.5), or use VI or "
            f"Laplace, which infer it with the weights."
        )


def factors_of(model: Model, batch: Batch, *, support: LayerSupport, buffers: Buffers, check: bool) -> Factors:
    """Return the factors of a batch (B, ...), without rows of weight 0.

    Raises ValueError if the likelihood takes too many outputs together or, with `check`, if the network is not linear.
    """
    offset, slopes_BPD = _linear(model, batch, support=support, buffers=buffers, check=check)
    plain, targets, weights = counted(model.likelihood, offset, batch.targets)
    positions, last = tuple(offset.shape[:-1]), offset.shape[-1]
    classes = isinstance(plain, Categorical)
    apart = isinstance(plain, _APART) and holds(plain, "curvature_root")
    shape = (1,) if apart else (last,) if classes else tuple(offset.shape[1:])
    count = offset.numel() if apart else positions[0] * (1 if not classes else offset[0, ..., 0].numel())
    slopes = slopes_BPD.reshape(count, -1, slopes_BPD.shape[-1])
    offset_NR = offset.reshape(count, -1).double()
    order_NK = _reference_last(offset_NR) if classes else None
    if order_NK is not None:
        offset_NR, slopes = offset_NR.gather(1, order_NK), slopes.take_along_dim(order_NK.unsqueeze(-1), 1)
        slopes, offset_NR = slopes[:, :-1] - slopes[:, -1:], offset_NR[:, :-1] - offset_NR[:, -1:]
    _check_together(plain, offset_NR.shape[1], classes=classes)
    counts = torch.ones(positions, dtype=torch.float64, device=offset.device)
    if weights is not None:
        counts = weights.double().view(*weights.shape, *[1] * (len(positions) - weights.ndim)).expand(positions)
    counts_N = counts.reshape(-1, 1).expand(-1, last).reshape(-1) if apart else counts.reshape(count, -1)[:, 0]
    targets = _of_factors(targets, apart=apart, classes=classes, count=count)
    if order_NK is not None:  # an exchange of two classes is its own inverse
        at = order_NK if targets.is_floating_point() else targets.unsqueeze(1)
        targets = targets.gather(1, at) if targets.is_floating_point() else order_NK.gather(1, at)[:, 0]
    noise_N = torch.ones_like(counts_N)
    if apart and isinstance(plain, Gaussian):
        noise_N = plain.noise(offset.double()).expand_as(offset).reshape(count)
    positive_N = counts_N > 0
    slopes, offset_NR, counts_N, targets, noise_N = (
        of_factor if bool(positive_N.all()) else of_factor[positive_N]
        for of_factor in (slopes, offset_NR, counts_N, targets, noise_N)
    )
    return Factors(slopes, offset_NR, counts_N, plain, targets, classes, shape, noise_N)


def _reference_last(offset_NK: Tensor) -> Tensor:
    """Return the order of classes in which the likeliest at w = 0 and the last change places.

    The likeliest is never masked. Of equally likely ones it is the last.
    """
    last = offset_NK.shape[1] - 1
    likeliest_N1 = last - offset_NK.flip(1).argmax(1, keepdim=True)
    order_NK = torch.arange(last + 1, device=offset_NK.device).repeat(len(offset_NK), 1)
    order_NK.scatter_(1, likeliest_N1, last)
    order_NK[:, last:] = likeliest_N1
    return order_NK


def _of_factors(targets: Any, *, apart: bool, classes: bool, count: int) -> Any:
    """Return targets with one place for each factor, in double precision; ValueError if they are not one tensor."""
    if not isinstance(targets, Tensor):
        raise ValueError(f"EP takes targets that are one tensor; got {type(targets).__name__}. Use VI or Laplace.")
    targets = targets.double() if targets.is_floating_point() else targets
    if apart:
        return targets.reshape(count)
    return targets.reshape(count, *targets.shape[-1:] if targets.is_floating_point() else ()) if classes else targets


def _check_together(plain: Likelihood, size: int, *, classes: bool) -> None:
    """Raise ValueError if a factor has too many numbers to integrate over."""
    if size <= MOST:
        return
    outputs = f"{size + 1} classes" if classes else f"{size} outputs together"
    raise ValueError(
        f"EP integrates over at most {MOST} numbers of a row, as those of {MOST + 1} classes; got {outputs} under "
        f"{plain!r}. Use Laplace, VBLL or VI, which take any number, or Bernoulli with one output for each class."
    )


def _linear(
    model: Model, batch: Batch, *, support: LayerSupport, buffers: Buffers, check: bool
) -> tuple[Tensor, Tensor]:
    """Return outputs at w = 0, (B, ..., K), and slopes of all P outputs of a row in the weights, float64 (B, P, D).

    Raises ValueError if the network is not linear in them, and DivergedError if they are not finite.
    """
    dtype, device, size = model.network.dtype, model.network.device, model.layout.size
    zero_D = torch.zeros(size, dtype=dtype, device=device)
    tangent = Tangent.at(
        model,
        zero_D,
        batch.inputs,
        structure=Diagonal(torch.ones_like(zero_D)[None]),
        buffers=buffers or None,
        chunk=_CHUNK,
        support=support,
    )
    outputs, parts = tangent.linear(batch.inputs)
    slopes = torch.zeros(len(outputs), outputs[0].numel(), size, dtype=torch.float64, device=device)
    for part in parts:
        slopes[:, :, part.where.flatten()] = part.jacobian().detach().flatten(2).double()
    if not bool((outputs.isfinite() | outputs.isneginf()).all() & slopes.isfinite().all()):
        raise DivergedError(
            "outputs of training rows, or their slopes in the weights, are not finite. Look for extreme values in the "
            "data or the constant weights."
        )
    if check:
        _check_linear(model, batch, outputs=outputs, slopes=slopes, buffers=buffers)
    return outputs.detach(), slopes


@torch.no_grad()
def _check_linear(model: Model, batch: Batch, *, outputs: Tensor, slopes: Tensor, buffers: Buffers) -> None:
    """Raise ValueError unless, at random weights, outputs are those at zero plus slopes times weights."""
    scale_D = (model.prior.stds() + model.prior.locs().abs()).to(slopes)
    source = generator(Purpose.SITE_LINEARITY, device=slopes.device)
    masked = outputs.isneginf()
    start = outputs.masked_fill(masked, 0.0).double().flatten(1)
    for _ in range(_TRIALS):
        drawn_D = torch.randn(len(scale_D), generator=source, dtype=slopes.dtype, device=slopes.device)
        weights_D = (3 * scale_D * drawn_D).to(outputs.dtype)
        network_outputs = model.network(model.split(weights_D)[0], batch.inputs, dict(buffers) or None)
        values = torch.where(masked & (network_outputs == outputs), 0.0, network_outputs).double().flatten(1)
        step = slopes @ weights_D.double()
        largest = float((slopes.abs() @ weights_D.double().abs()).max() + start.abs().max())
        gap = float((values - start - step).abs().max())
        if not gap <= 1e3 * torch.finfo(outputs.dtype).eps * max(largest, 1e-30):
            raise ValueError(
                f"EP is for networks whose outputs are linear in the random weights; at random ones those of this "
                f"network are {gap:.2g} off a linear function. Train it, and make the weights of its last layer alone "
                f"random: Model(network, …, random='head.*'); or use Laplace, VBLL or VI, which take any network."
            )
