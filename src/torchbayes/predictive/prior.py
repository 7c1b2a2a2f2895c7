"""What a model believes of functions before it sees data: networks with weights drawn from the prior.

    p(y | x) = ∫ p(y | f_w(x)) p(w) dw ≈ (1/S) Σ_s p(y | f_s(x)),     f_s = f_{w_s},  w_s ~ p(w)

A prior over weights that looks vague can be strong as a prior over functions. What it says of two inputs is the
correlation of their outputs over the draws, ρ(x, x′) = Cov[f(x), f(x′)] / √(Var f(x) Var f(x′)). For a linear model
under N(0, α² I) without bias it is the cosine xᵀx′/(|x||x′|), for a wide ReLU network that of the arc-cosine kernel
(Cho and Saul 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from torchbayes.calls import explained
from torchbayes.checks import as_seed, check_counts, check_kind, check_memory, seen
from torchbayes.display import Overview, shown
from torchbayes.model.model import Model
from torchbayes.native.process import undisturbed
from torchbayes.posteriors.functions import Functions, passes, recalibrate_
from torchbayes.predictive.average import Predictive
from torchbayes.predictive.predict import predict
from torchbayes.randomness.seeds import Purpose, mix

_BLOCK = 1 << 24  # weights drawn at a time, because a prior draws them in float64


def _overview(prior: PriorPredictive) -> Overview:
    return Overview("PriorPredictive", {"draws": prior.predictive.draws, "model": prior.functions.model})


@shown(_overview)
@dataclass(frozen=True, eq=False)
class PriorPredictive:
    """S functions drawn from the prior of a model, at B inputs.

    Attributes:
        functions: the networks; call them on other inputs for the same functions there.
        predictive: their equal mixture, through the likelihood.
    """

    functions: Functions
    predictive: Predictive

    @property
    def outputs_SBK(self) -> Tensor:
        """Outputs of the functions, before the likelihood."""
        return self.predictive.outputs_SBK

    @property
    def weights_SD(self) -> Tensor:
        """The drawn weights."""
        return self.functions.weights_SD

    @cached_property
    def correlation_KBB(self) -> Tensor:
        """Correlation of every output between all pairs of inputs over the draws, (K, B, B), float64.

        NaN at inputs where an output is equal for all draws. Outputs at several places of a row count as several
        outputs.

        Raises:
            ValueError: if there is one draw, an output is not finite, or the matrices do not fit in memory.
        """
        standard_SBK = self._standard
        _, rows, outputs = standard_SBK.shape
        check_memory(8 * outputs * rows**2, "correlations of each output", standard_SBK.device, inputs=rows)
        products_KBB = torch.einsum("sbk,sck->kbc", standard_SBK, standard_SBK)
        return _symmetric(products_KBB).clamp(-1, 1)

    @cached_property
    def correlation(self) -> Tensor:
        """Correlation between all pairs of inputs, the mean over outputs of `correlation_KBB`, (B, B), float64.

        Raises:
            ValueError: as `correlation_KBB`.
        """
        standard_SBK = self._standard
        rows = standard_SBK.shape[1]
        check_memory(16 * rows**2, "the correlations", standard_SBK.device, inputs=rows)
        moving_KB = standard_SBK[0].isfinite().double().T
        flat = standard_SBK.nan_to_num(0.0).transpose(0, 1).flatten(1)
        # The quotient is 0/0 where no output varies at both inputs.
        return (_symmetric(flat @ flat.T) / (moving_KB.T @ moving_KB)).clamp(-1, 1)

    def class_correlation(self, labels: Any) -> Tensor:
        """Return the mean correlation between inputs of each two classes, float64 (C, C), ordered as `labels.unique()`.

        Pairs of an input with itself, and with inputs at which the functions do not vary, are left out; NaN on the
        diagonal for a class of one input.

        Args:
            labels: whole numbers (B,), the class of each input.

        Raises:
            TypeError: if labels are not whole numbers.
            ValueError: if there is not one for each input, or as `correlation_KBB`.
        """
        correlation_BB = self.correlation
        member_BC = _one_hot(labels, len(correlation_BB)).to(correlation_BB)
        different = correlation_BB.isfinite() & ~torch.eye(
            len(correlation_BB), dtype=torch.bool, device=correlation_BB.device
        )
        total = member_BC.T @ torch.where(different, correlation_BB, 0.0) @ member_BC
        return total / (member_BC.T @ different.double() @ member_BC)

    @cached_property
    def _standard(self) -> Tensor:
        """Return outputs less their mean, with norm 1 over the draws: (S, B, K), float64; NaN where constant.

        A ValueError if there is one draw, or an output is not finite.
        """
        outputs_SBK = self.outputs_SBK.double().flatten(2)
        if len(outputs_SBK) < 2:
            raise ValueError("a correlation over draws needs at least 2 draws; got 1. Ask for `draws=100`.")
        wrong = int((~outputs_SBK.isfinite()).flatten(1).any(1).sum())
        if wrong:
            raise ValueError(
                f"the outputs of {wrong} of {len(outputs_SBK)} drawn functions are NaN or infinite, so they have no "
                f"correlation. Choose a prior with lighter tails or a smaller scale."
            )
        centred = outputs_SBK - outputs_SBK.mean(0)
        norm_BK = torch.linalg.vector_norm(centred, dim=0)
        rounding = 8 * torch.finfo(self.outputs_SBK.dtype).eps * torch.linalg.vector_norm(outputs_SBK, dim=0)
        return torch.where(norm_BK > rounding, centred / norm_BK, torch.nan)


@undisturbed
@explained()
def prior_predictive(
    model: Model, inputs: Any, *, draws: int = 100, seed: int = 0, chunk_size: int = 1024, calibration: Any = None
) -> PriorPredictive:
    """Draw functions from the prior of a model.

    Weights and learned parameters of the likelihood are drawn from their priors; a temperature has no effect. What
    a likelihood takes from training targets, the scale of a prior of the noise, is 1. Dropout is off. A draw of a
    network with batch norm gets the statistics of the `calibration` inputs under its weights, as the draws of
    posteriors do from training data.

    Args:
        model: the model.
        inputs: tensor (B, ...), a tuple or mapping of such, or a DataLoader (its targets are ignored).
        draws: S.
        seed: seed of the draws.
        chunk_size: rows that go through a network at once.
        calibration: for networks with batch norm: inputs, such as those of the training data, in any form of
            `inputs`.

    Returns:
        The functions, and what they predict.

    Raises:
        TypeError: if `model` is not a Model.
        ValueError: if a prior is improper or cannot be drawn from, inputs are empty or not finite, the weights do
            not fit in memory, or the network has batch norm and `calibration` is None.
    """
    functions = prior_functions(model, draws, seed=seed, calibration=calibration, chunk_size=chunk_size)
    return PriorPredictive(functions, predict(functions, inputs, chunk_size=chunk_size))


def prior_functions(
    model: Model, draws: int, *, seed: int, calibration: Any = None, chunk_size: int = 1024
) -> Functions:
    """Return S networks with weights drawn from the prior; arguments and errors as of `prior_predictive`."""
    check_kind(Model, "a Model", model=model)
    check_counts(draws=draws, chunk_size=chunk_size)
    seed, network, size = as_seed(seed), model.network, model.layout.size
    if calibration is None and network.batch_norms:
        raise ValueError(
            f"`{network.batch_norms[0]}` is a batch norm whose statistics belong to the weights, so each draw must be "
            f"calibrated on data. Give inputs, such as those of the training data: `calibration=inputs`."
        )
    check_memory(draws * size * network.dtype.itemsize, "the drawn weights", network.device, draws=draws)
    weights_SD = torch.empty(draws, size, dtype=network.dtype, device=network.device)
    block = max(1, _BLOCK // size)
    for number, start in enumerate(range(0, draws, block)):
        block_SD = weights_SD[start : start + block]
        block_SD.copy_(model.prior.sample(len(block_SD), seed=mix(Purpose.PRIOR_PREDICTIVE, seed, number)))
    buffers_S = network.stacked_buffers(draws)
    if network.batch_norms:
        recalibrate_(model, weights_SD, buffers_S, calibration=passes(model, calibration, chunk_size=chunk_size))
    return Functions(model, weights_SD, buffers_S or None)


def _symmetric(products: Tensor) -> Tensor:
    """Return products of all pairs, made symmetric: rounding of (i, j) and (j, i) differs on some machines."""
    return 0.5 * (products + products.mT)


def _one_hot(labels: Any, rows: int) -> Tensor:
    """Return the class of each input as a row with one 1, (B, C), classes in increasing order.

    A TypeError if labels are not whole numbers, a ValueError if there is not one for each input.
    """
    try:
        labels_B = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`labels` must be whole numbers (B,); got {seen(labels)}.") from error
    if labels_B.is_floating_point() or labels_B.is_complex():
        raise TypeError(f"`labels` must be whole numbers (B,); got {seen(labels)}.")
    if labels_B.shape != (rows,):
        raise ValueError(f"`labels` must be one class for each of the {rows} inputs; got {seen(labels)}.")
    return (labels_B[:, None] == labels_B.unique()).double()
