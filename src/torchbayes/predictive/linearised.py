"""Predictives in closed form: a Gaussian posterior N(w*, Σ) pushed through the network linearised at w*.

    f(x) ~ N( f_{w*}(x), J(x) Σ J(x)ᵀ ),    J the Jacobian of the outputs in the weights

is the predictive of a Laplace posterior with Gauss-Newton curvature (Khan et al. 2019; Immer et al. 2021): that
posterior is the exact one of a generalised linear model. Its predictive does not degrade where draws of weights
leave the region in which the network is nearly linear. The link maps f to the targets:

    gaussian   regression: y ~ N(f*, J Σ Jᵀ + noise²), exact
    probit     for Bernoulli sigmoid(f* / √(1 + π V / 8)) (MacKay 1992); softmax((f*_k − f̄*) / √(1 + π V_k / 8)), f̄ the
               mean of the outputs and V_k the variance of f_k less the mean of the others
    pairwise   p_k ∝ 1 / Σ_j exp(−(f*_k − f*_j) / √(1 + π (V_kk + V_jj − 2 V_jk) / 8)): one probit for every pair of
               classes, with correlations (Lu et al. 2020)
    bridge     the mean of a Dirichlet with α_k = (1 − 2/K + e^{f*_k} / K² Σ_j e^{−f*_j}) / V_kk (Hobbhahn et al. 2022),
               for the Gaussian of f − Σ_k f_k / K
    samples    f drawn from the Gaussian: any likelihood
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_counts, check_memory, plain
from torchbayes.curvature.discovery import SPREAD_ROWS, LayerSupport
from torchbayes.curvature.features import Leaf
from torchbayes.curvature.products import tangent_outputs
from torchbayes.curvature.tangent import Centre, Tangent
from torchbayes.display import shown_by
from torchbayes.linalg.matrices import eigh
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.layout import broadcasting
from torchbayes.model.model import Model, check_finite
from torchbayes.native.process import outside_inference, undisturbed_methods
from torchbayes.posteriors.functions import Functions as Drawn
from torchbayes.posteriors.gaussian import Gaussian, check_gaussian
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.posterior import Posterior
from torchbayes.posteriors.problems import warn_of
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.last_layer import LinearisedModule
from torchbayes.predictive.links import CENTRED, CLOSED, EXACT, MANY, MARGINAL, Link, centre_of, link_of
from torchbayes.predictive.mixture import check_outputs
from torchbayes.randomness.seeds import Purpose, generator


class Functions(NamedTuple):
    """Gaussian outputs of each member at B inputs."""

    mean_MBK: Tensor  # f_{w*}(x), (M, B, ..., K) with places of a sequence or an image in between
    covariance_MBKK: Tensor  # J Σ Jᵀ of each place, (M, B, ..., K, K); or only its diagonal, (M, B, ..., K)


@undisturbed_methods
@shown_by("link", "posterior")
@dataclass(frozen=True)
class Linearised:
    """The linearised predictive of a Laplace or other Gaussian posterior.

    It takes the place of a posterior in `predict`, `stream` and `evaluate`. With M members it is the mixture of
    theirs. Links in closed form have no draws, so mutual information is that between members, 0 for a single one;
    within a member it needs "samples". Where a row has several places, such as tokens or pixels, these links make
    them independent given the member. Functions instead are sampled for all places of a row together: N²
    covariances of its N outputs.

    Attributes:
        posterior: Laplace, or a Gaussian over any structure.
        link: "auto" is "gaussian" for regression and "normal_cdf" for Probit, which are exact; "pairwise" for up to
            100 classes, "probit" for more on a last layer and for Bernoulli, "samples" for the rest. "probit" takes K
            variances instead of K² covariances.
        samples: functions drawn for each member by "samples". Rows of up to 100 outputs have draws of their own, from
            the covariance of their outputs. With more, weights are drawn, and f + J (w − w*) takes the time of about
            three passes for each draw, whatever the number of outputs.
        seed: seed of these functions.
        chunk: numbers that a piece of the rows may take: the bound on memory.
    """

    posterior: LaplacePosterior | Gaussian
    link: Link = "auto"
    samples: int = 100
    seed: int = 0
    chunk: int = field(default=2**24, kw_only=True)

    def __post_init__(self) -> None:
        check_gaussian(self.posterior, "Use predict(posterior, inputs).")
        plain(self)
        check_counts(samples=self.samples, chunk=self.chunk)
        as_seed(self.seed)
        link_of(self.link, self.model.likelihood)
        warn_of(self.posterior.problems)

    @property
    def model(self) -> Model:
        """The model."""
        return self.posterior.model

    def functions(self, inputs: Any, *, diagonal: bool = False) -> Functions:
        """Return mean and covariance of the outputs at each input.

        Differentiable in the inputs where they require a gradient.

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such.
            diagonal: return only variances: with many outputs, K² is much more than K.

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        with outside_inference():
            return self._functions(checked(self.model, inputs), diagonal=diagonal)

    def _functions(
        self, placed: Any, *, diagonal: bool, together: bool = False, centre: Centre | None = None
    ) -> Functions:
        """Return mean and covariance of each place, or of all outputs of a row together, (M, B, N, N).

        If `centre` gives weights of the mean of the outputs, variances are those of the outputs less this mean.
        """
        gaussians = [
            tangent.functions(placed, leaves, diagonal=diagonal, together=together, centre=centre)
            for tangent, leaves in self._tangents(placed)
        ]
        return Functions(*map(torch.stack, zip(*gaussians, strict=True)))

    def joint(self, inputs: Any) -> Functions:
        """Return mean (M, B, ..., K) and the covariance of all outputs at all inputs, (M, B, ..., K, B, ..., K).

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such; memory grows with (B K)².

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        with outside_inference():
            placed = checked(self.model, inputs)
            gaussians = [tangent.joint(placed, leaves) for tangent, leaves in self._tangents(placed)]
        return Functions(*map(torch.stack, zip(*gaussians, strict=True)))

    def cross(self, inputs: Any, others: Any) -> Tensor:
        """Return the covariance of the outputs at two sets of inputs, (M, B, ..., K, B', ..., K).

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such.
            others: likewise, B' rows; memory grows with B B' K².

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        with outside_inference():
            placed, other = (checked(self.model, each) for each in (inputs, others))
            return torch.stack([tangent.cross(placed, other, leaves) for tangent, leaves in self._tangents(placed)])

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the predictive at inputs, a mixture over the members.

        Args:
            inputs: tensor (B, ...), or a tuple or mapping of such.
            chunk_size: rows that go through the network at once, at most.

        Returns:
            The predictive; its draws are the members, times `samples` with the link "samples".

        Raises:
            ValueError: if the network cannot take the inputs, or there are no rows.
        """
        with outside_inference():
            means_MD, placed = self.posterior.gaussian.mean_MD, checked(self.model, inputs)
            tangent = self._tangents(placed)[0][0]
            link = link_of(self.link, self.model.likelihood, outputs=tangent.outputs)
            if self.link == "auto" and link == CENTRED and not tangent.last:
                link = "samples"  # K variances would take K gradients
            if link == "samples" and math.prod(tangent.shape) > MANY:
                return self.drawn().predictive(placed, chunk_size=chunk_size)
            functions = partial(self._functions, together=link == "samples", centre=centre_of(link))
            return linked(
                link,
                self.model,
                means_MD,
                functions=functions,
                inputs=placed,
                samples=self.samples,
                seed=self.seed,
                rows=chunk_size,
            )

    def drawn(self) -> Tangents:
        """Return drawn functions of the linearised network: the same ones at all inputs, and in every call."""
        return Tangents(self)

    def module(self, *, level: float | None = 0.95) -> LinearisedModule:
        """Return the closed form of a last layer as a plain `nn.Module` that can be exported: inputs -> name -> tensor.

        A call takes one pass through the network and no draws.

        Args:
            level: of the central intervals of numbers; no intervals if None.

        Raises:
            ValueError: if the random weights are not those of one linear layer, the link is "samples", or the level
                is not between 0 and 1.
        """
        return LinearisedModule.of(self.posterior.gaussian, link=self.link, level=level)

    def _tangents(self, inputs: Any) -> list[tuple[Tangent, list[Leaf]]]:
        """Return the network linearised at every member, and the member's covariance.

        The support of its layers is known from the fit, or determined from the inputs, anew if there are more rows
        than before.
        """
        text = self.posterior.layer_support
        rows, cache = 0 if text else min(batch_size(inputs), SPREAD_ROWS), self._known
        if all(rows > before for before in [*cache]):
            gaussian, buffers_M = self.posterior.gaussian, self.posterior.buffers_M or {}
            buffers = [{n: b[m] for n, b in buffers_M.items()} or None for m in range(gaussian.members)]
            structures = [gaussian.covariance.member(m) for m in range(gaussian.members)]
            support = LayerSupport.parse(text) if text else None
            tangent = Tangent.at(
                self.model,
                gaussian.mean_MD[0],
                inputs,
                buffers=buffers[0],
                structure=structures[0],
                chunk=self.chunk,
                support=support,
            )
            cache[rows] = [
                (
                    replace(tangent, weights_D=gaussian.mean_MD[m], buffers=buffers[m]),
                    tangent.leaves(structure) if m else tangent.over,
                )
                for m, structure in enumerate(structures)
            ]
        return cache[max([*cache])]

    @cached_property
    def _known(self) -> dict[int, list[tuple[Tangent, list[Leaf]]]]:
        return {}


@shown_by("linearised")
@dataclass(frozen=True)
class Tangents:
    """Functions f + J (w − w*) of drawn weights w, the same at all inputs: `samples` for each member of a posterior.

    It takes the place of a posterior in `predict`, where rows must be drawn together.
    """

    linearised: Linearised

    @property
    def model(self) -> Model:
        """The model."""
        return self.linearised.model

    @cached_property
    def _moves_SMD(self) -> Tensor:
        """The drawn weights less those of their member."""
        of, gaussian = self.linearised, self.linearised.posterior.gaussian
        drawn_SD = gaussian.sample(of.samples * gaussian.members, seed=of.seed)
        return drawn_SD.unflatten(0, (of.samples, -1)) - gaussian.mean_MD

    def predictive(self, inputs: Any, *, chunk_size: int = 1024) -> Predictive:
        """Return the predictive at inputs, (B, ...); at most `chunk_size` rows go through the network at once."""
        with outside_inference():
            model, samples, placed = self.model, self.linearised.samples, checked(self.model, inputs)
            moves_SMD = self._moves_SMD[..., : model.network.layout.size]
            pieces = [rows_of(placed, slice(a, a + chunk_size)) for a in range(0, batch_size(placed), chunk_size)]
            drawn = []
            for m, (tangent, _) in enumerate(self.linearised._tangents(placed)):
                views, _ = model.split(tangent.weights_D)
                options: dict[str, Any] = {"vectors_RD": moves_SMD[:, m], "buffers": tangent.buffers}
                drawn.append(torch.cat([tangent_outputs(model, views, piece, **options) for piece in pieces], dim=1))
                needed = moves_SMD.shape[1] * samples * drawn[0][0].nbytes
                check_memory(needed, "sampled functions", drawn[0].device, samples=samples)
            means_MD = self.linearised.posterior.gaussian.mean_MD
            return _of_draws(model, torch.stack(drawn, dim=1).flatten(0, 1), means_MD, samples=samples)


def preferred(posterior: Posterior, draws: int | None = None, *, seed: int = 0) -> Linearised | Drawn:
    """Return what a posterior predicts with by default, for `predict` and `evaluate`.

    It is linearised where `by_outputs` says so, else drawn functions, and always drawn functions if `draws` is
    given.
    """
    linearised = by_outputs(posterior, seed=seed) if draws is None else None
    return posterior.functions(draws, seed=seed) if linearised is None else linearised


def by_outputs(posterior: Any, *, seed: int = 0) -> Linearised | None:
    """Return the linearised form of a Laplace posterior, and of one over a last layer; None for any other.

    These predict with it by default. The Gaussian of a Laplace posterior belongs to the linearised network, and
    draws of weights leave the region where the network is nearly linear. Outputs that are linear in all weights
    that vary are normal, and take one pass through the network. For normal noise and Probit the predictive is
    exact; else it averages values drawn from the outputs with `seed`.
    """
    if getattr(posterior, "of_linearised", False):
        return Linearised(posterior, seed=seed)
    if not getattr(posterior, "linear", False):
        return None
    link: Any = link_of("auto", posterior.model.likelihood)
    return Linearised(posterior, link if link in EXACT else "samples", seed=seed)


def checked(model: Model, inputs: Any) -> Any:
    """Return inputs on the model's device; a ValueError if there are no rows, or they are not finite."""
    placed = model.place(inputs)
    check_finite(placed)
    if batch_size(placed) == 0:
        raise ValueError("`inputs` has no rows; there is nothing to predict.")
    return placed


def linked(
    link: str,
    model: Model,
    weights_MD: Tensor,
    *,
    functions: Callable[..., Functions],
    inputs: Any,
    rows: int,
    samples: int = 100,
    seed: int = 0,
) -> Predictive:
    """Return the predictive, a mixture over the members, of Gaussian outputs under a link that `link_of` returned.

    `functions` maps inputs and `diagonal` to Gaussian outputs: variances suffice for links in `MARGINAL`, and
    "samples" takes the covariance of all outputs of a row. `weights_MD` hold the learned likelihood parameters.
    `inputs` are as `checked` returns them; at most `rows` go through the network at once.
    """
    pieces = [rows_of(inputs, slice(a, a + rows)) for a in range(0, batch_size(inputs), rows)]
    gaussians = (functions(piece, diagonal=link in MARGINAL) for piece in pieces)
    if link in CLOSED:  # piece by piece, because K² covariances per row may not fit in memory
        averaged = [(each.mean_MBK, CLOSED[link](*each)) for each in gaussians]
        mean_MBK, averaged_MBK = (torch.cat(each, dim=1) for each in zip(*averaged, strict=True))
        check_outputs(model.likelihood, mean_MBK)
        return Predictive(averaged_MBK, model.likelihood)
    mean_MBK, spread = (torch.cat(each, dim=1) for each in zip(*gaussians, strict=True))
    if link == "gaussian":
        parameters = broadcasting(model.split(weights_MD)[1], mean_MBK)
        return Predictive(mean_MBK, model.likelihood, parameters, function_variance=spread)
    check_memory(samples * mean_MBK.nbytes, "sampled functions", mean_MBK.device, samples=samples)
    return _of_draws(model, _drawn(mean_MBK, spread, samples, seed=seed), weights_MD, samples=samples)


def _of_draws(model: Model, outputs_SBK: Tensor, weights_MD: Tensor, *, samples: int) -> Predictive:
    """Return the predictive of drawn functions; draw s has the learned parameters of member s mod M."""
    learned = {n: p.repeat(samples, *[1] * (p.ndim - 1)) for n, p in model.split(weights_MD)[1].items()}
    return Predictive(outputs_SBK, model.likelihood, broadcasting(learned, outputs_SBK))


def _drawn(mean_MBK: Tensor, covariance_MBNN: Tensor, samples: int, *, seed: int) -> Tensor:
    """Return functions (samples · M, B, ..., K), drawn independently for each row; draw s is from member s mod M."""
    variance = covariance_MBNN.diagonal(dim1=-2, dim2=-1)
    source = generator(Purpose.OUTPUTS, seed, device=mean_MBK.device)
    noise = torch.randn(samples, *variance.shape, generator=source, dtype=mean_MBK.dtype, device=mean_MBK.device)
    if int(covariance_MBNN.count_nonzero()) == int(variance.count_nonzero()):  # outputs are independent
        return (mean_MBK + (noise * variance.sqrt()).view(samples, *mean_MBK.shape)).flatten(0, 1)
    values, vectors = eigh(covariance_MBNN)
    root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
    # root @ noise would copy the root for every draw
    return (mean_MBK + torch.einsum("mbkl,smbl->smbk", root, noise).view(samples, *mean_MBK.shape)).flatten(0, 1)
