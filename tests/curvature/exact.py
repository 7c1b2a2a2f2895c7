"""Curvature of −log p(y|f) by brute force in float64: explicit Jacobians, one backward pass per output.

Everything is a sum over the N rows. Axes besides the usual ones: T places where a layer's weight is used in a row, C
vectors per row that are sent back, I inputs and J outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from tests.peers import linear_layers


def jacobians(net: nn.Module, inputs: Tensor) -> Tensor:
    """Return the derivatives of the outputs by the weights, (N, K, D), weights in the order of `parameters()`."""
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
    parts = jacrev(lambda values: functional_call(net, values, (inputs,)))(weights)
    return torch.cat([part.flatten(2) for part in parts.values()], dim=2)


def output_hessians(outputs_NK: Tensor, likelihood: str) -> Tensor:
    """Return the second derivatives of −log p(y|f) by f, (N, K, K): diag(p) − p pᵀ, or the identity."""
    if likelihood == "regression":
        return torch.eye(outputs_NK.shape[1], dtype=outputs_NK.dtype).expand(len(outputs_NK), -1, -1)
    probs_NK = outputs_NK.softmax(dim=1)
    return torch.diag_embed(probs_NK) - probs_NK[:, :, None] * probs_NK[:, None, :]


def output_roots(outputs_NK: Tensor, likelihood: str) -> Tensor:
    """Return vectors (C, N, K) whose outer products, summed over C, are the output Hessians."""
    values, vectors = torch.linalg.eigh(output_hessians(outputs_NK, likelihood))
    return (vectors * values.clamp(min=0).sqrt()[:, None, :]).permute(2, 0, 1)


def output_gradients(outputs_NK: Tensor, targets: Tensor, likelihood: str) -> Tensor:
    """Return the first derivatives of −log p(y|f) by f, as one vector per row, (1, N, K)."""
    if likelihood == "regression":
        return (outputs_NK - targets)[None]
    return (outputs_NK.softmax(dim=1) - F.one_hot(targets, outputs_NK.shape[1]))[None]


def log_likelihood(outputs_NK: Tensor, targets: Tensor, likelihood: str, noise_scale: float) -> Tensor:
    """Return log p(D|w), in nats."""
    if likelihood == "regression":
        return torch.distributions.Normal(outputs_NK, noise_scale).log_prob(targets).sum()
    return torch.distributions.Categorical(logits=outputs_NK).log_prob(targets).sum()


def dense(jacobians_NKD: Tensor, vectors_CNK: Tensor) -> Tensor:
    """Return Σ_n Σ_c Jᵀ v vᵀ J, (D, D): the GGN for roots of the output Hessians, a Fisher matrix for gradients."""
    gradients = torch.einsum("nkd,cnk->cnd", jacobians_NKD, vectors_CNK).flatten(0, 1)
    return gradients.T @ gradients


class Shared(NamedTuple):
    """What passes through a layer: each row uses its weight at T places.

    Attributes:
        inputs_NTI: inputs, for a convolution the patches.
        gradients_CNTJ: derivatives, by the layer's outputs, of the products of outputs and vectors.
    """

    inputs_NTI: Tensor
    gradients_CNTJ: Tensor


def _places(layer: nn.Module, tensor: Tensor, *, patches: bool) -> Tensor:
    """Bring what a layer takes or gives to the form (N, T, features)."""
    if isinstance(layer, nn.Conv2d):
        if patches:
            assert not isinstance(layer.padding, str)
            return F.unfold(
                tensor, layer.kernel_size, dilation=layer.dilation, padding=layer.padding, stride=layer.stride
            ).mT
        return tensor.flatten(2).mT
    return tensor[:, None] if tensor.ndim == 2 else tensor.flatten(1, -2)


def shared(net: nn.Module, inputs: Tensor, vectors_CNK: Tensor) -> dict[str, Shared]:
    """Return what passes through each Linear and Conv2d layer (without groups), by name."""
    layers, seen = linear_layers(net), {}
    handles = [
        layer.register_forward_hook(lambda _, given, made, name=name: seen.update({name: (given[0], made)}))
        for name, layer in layers.items()
    ]
    outputs_NK = net(inputs)
    for handle in handles:
        handle.remove()
    made = [seen[name][1] for name in layers]
    backward = [
        torch.autograd.grad((outputs_NK * vector_NK).sum(), made, retain_graph=True) for vector_NK in vectors_CNK
    ]
    return {
        name: Shared(
            _places(layer, seen[name][0].detach(), patches=True),
            torch.stack([_places(layer, gradients[i], patches=False) for gradients in backward]),
        )
        for i, (name, layer) in enumerate(layers.items())
    }


def with_ones(inputs_NTI: Tensor) -> Tensor:
    """Append the input of the bias, which is one."""
    return torch.cat([inputs_NTI, torch.ones_like(inputs_NTI[..., :1])], dim=-1)


def kfac(statistics: Shared, approx: str, *, joint: bool) -> tuple[Tensor, Tensor]:
    """Return factors A (I, I) and B (J, J); the block of the weight (J, I), row by row, is B ⊗ A.

    expand: A = Σ_n Σ_t a aᵀ / (N T), B = Σ_c Σ_n Σ_t g gᵀ; reduce: A = Σ_n ā āᵀ / N with ā the mean of a over places,
    B = Σ_c Σ_n ĝ ĝᵀ with ĝ the sum of g over places. Source: Eschenhagen et al. (2023), in the form of a sum over rows.

    Args:
        statistics: what passes through the layer.
        approx: "expand" or "reduce".
        joint: whether a has a last entry of one, for the bias.
    """
    inputs_NTI, gradients_CNTJ = statistics
    if joint:
        inputs_NTI = with_ones(inputs_NTI)
    if approx == "reduce":
        inputs_NTI = inputs_NTI.mean(dim=1, keepdim=True)
        gradients_CNTJ = gradients_CNTJ.sum(dim=2, keepdim=True)
    inputs, gradients = inputs_NTI.flatten(0, 1), gradients_CNTJ.flatten(0, 2)
    return inputs.T @ inputs / len(inputs), gradients.T @ gradients


def ekfac(statistics: Shared, approx: str, *, joint: bool) -> Tensor:
    """Return the dense block of a layer's weight, (J I, J I): eigenvectors of `kfac`, variances of the exact one."""
    inputs_NTI, gradients_CNTJ = statistics
    if joint:
        inputs_NTI = with_ones(inputs_NTI)
    input_factor, gradient_factor = kfac(statistics, approx, joint=joint)
    vectors = torch.kron(torch.linalg.eigh(gradient_factor)[1], torch.linalg.eigh(input_factor)[1])
    rows = torch.einsum("cntj,nti->cnji", gradients_CNTJ, inputs_NTI).flatten(0, 1).flatten(1)
    values = (rows @ vectors).square().sum(dim=0)
    return vectors * values @ vectors.T


def ekfac_bias(statistics: Shared, approx: str) -> Tensor:
    """Return the dense block of a layer's bias on its own, (J, J)."""
    vectors = torch.linalg.eigh(kfac(statistics, approx, joint=False)[1])[1]
    rows = statistics.gradients_CNTJ.sum(dim=2).flatten(0, 1)
    return vectors * (rows @ vectors).square().sum(dim=0) @ vectors.T


def weight_then_bias(block: Tensor, statistics: Shared) -> Tensor:
    """Bring a joint block, whose rows and columns are those of [W b] row by row, to the order of W, then b."""
    inputs, outputs = statistics.inputs_NTI.shape[-1], statistics.gradients_CNTJ.shape[-1]
    places = torch.arange(outputs * (inputs + 1)).view(outputs, inputs + 1)
    order = torch.cat([places[:, :-1].flatten(), places[:, -1]])
    return block[order][:, order]


def log_evidence(log_likelihood: Tensor, precision_DD: Tensor, mode_D: Tensor, prior_precision: float) -> Tensor:
    """Return log p(D|w) − ½ (log det P − log det P₀ + wᵀ P₀ w) for P₀ = prior_precision · I, in nats."""
    prior = len(mode_D) * torch.log(torch.tensor(prior_precision, dtype=mode_D.dtype))
    return log_likelihood - 0.5 * (torch.logdet(precision_DD) - prior + prior_precision * mode_D.square().sum())


def probit(mean_NK: Tensor, variance_NKK: Tensor) -> Tensor:
    """Return softmax(m_k / √(1 + π/8 V_kk)), (N, K)."""
    return torch.softmax(mean_NK / (1 + torch.pi / 8 * variance_NKK.diagonal(dim1=1, dim2=2)).sqrt(), dim=1)


def laplace_bridge(mean_NK: Tensor, variance_NKK: Tensor) -> Tensor:
    """Return the mean of the Dirichlet of the Laplace bridge, after the outputs were conditioned on summing to zero.

    That is what laplace-torch computes; torchbayes projects them, as decision 0028 says.

    m' = m − V1 (1ᵀm)/(1ᵀV1), V' = V − V1 1ᵀV/(1ᵀV1), α_k = (1 − 2/K + e^{m'_k} Σ_j e^{−m'_j} / K²) / V'_kk.
    Source: Hobbhahn et al. (2022), equation 7, and their correction of the mean and the covariance.
    """
    row_NK, total_N = variance_NKK.sum(dim=2), variance_NKK.sum(dim=(1, 2))
    mean = mean_NK - row_NK * (mean_NK.sum(dim=1) / total_N)[:, None]
    variance = variance_NKK - row_NK[:, :, None] * row_NK[:, None, :] / total_N[:, None, None]
    count = mean_NK.shape[1]
    spread = mean.exp() * (-mean).exp().sum(dim=1, keepdim=True) / count**2
    alpha = (1 - 2 / count + spread) / variance.diagonal(dim1=1, dim2=2)
    return alpha / alpha.sum(dim=1, keepdim=True)


def block_diagonal(blocks: Mapping[str, Tensor] | list[Tensor]) -> Tensor:
    """Return the matrix with these blocks."""
    return torch.block_diag(*(blocks.values() if isinstance(blocks, Mapping) else blocks))
