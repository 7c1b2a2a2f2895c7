"""Models that the library's own kernel runs, and the test of which these are.

A model qualifies if architecture.py recognises its network, all of its parameters are random and untied, it is on a
CPU, and its likelihood is categorical, Gaussian or heteroscedastic. Any prior will do: the kernel computes what is
`Closed` of it, and the rest is added here. In a subspace, where it runs the whole network, some parameters may be
constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchbayes.checks import SettingError
from torchbayes.density.architecture import Architecture, architecture
from torchbayes.model.layout import Layout
from torchbayes.model.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from torchbayes.model.model import PREFIX, Batch, Model, Scales
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import BoundPrior, Closed
from torchbayes.model.priors.bound import Segment as PriorSegment
from torchbayes.model.priors.groups import SharedVariance
from torchbayes.model.priors.noise import LogInverseChi
from torchbayes.model.priors.univariate import Flat, Normal, StudentT
from torchbayes.model.subspace import in_parameters, space_of
from torchbayes.native.build import UnavailableError
from torchbayes.native.dense import Affine, DenseKernel
from torchbayes.native.description import Family, Noise, Segment


@dataclass(frozen=True)
class DenseModel:
    """A model that the kernel runs."""

    kernel: DenseKernel
    prior: BoundPrior  # the whole prior
    complete: bool  # whether the kernel computes all of the prior, and so the whole density
    network: Architecture
    targets: int  # number of target values of one row
    dtype: torch.dtype  # of weights and inputs
    classes: bool  # whether targets are class labels
    buffers: Buffers  # of the network

    def takes(self, weights_MD: Tensor, inputs: object, targets: object = None, *, shared: bool) -> bool:
        """Return whether weights and rows have the shapes and dtypes of this network, which the kernel relies on.

        Inputs are rows (M, B, ...) of each member, or (B, ...) when shared.
        """
        if not isinstance(inputs, Tensor):
            return False
        lead = 1 if shared else 2
        rows = inputs.shape[:lead].numel()
        fits = weights_MD.shape[-1] == self.kernel.size and (shared or len(inputs) == len(weights_MD))
        fits &= all(t.dtype == self.dtype and t.device.type == "cpu" for t in (weights_MD, inputs))
        fits &= rows > 0 and self.network.takes(inputs.shape[lead:])
        if targets is None:
            return fits
        if not isinstance(targets, Tensor):
            return False
        fits &= targets.shape[:lead] == inputs.shape[:lead] and targets.numel() == rows * self.targets
        return fits and targets.dtype == (torch.int64 if self.classes else self.dtype) and targets.device.type == "cpu"

    def shares(self, buffers: Buffers | None) -> bool:
        """Return whether buffers of members, (M, ...) each, are all those of the network; None are."""
        kept = self.buffers
        return all(name in kept and bool((kept[name] == stack).all()) for name, stack in (buffers or {}).items())

    def encoded(self, inputs: Tensor, *, lead: int) -> Tensor:
        """Return inputs as the kernel takes them, with so many axes in front of those of a row."""
        encoding = self.network.encoding
        return inputs if encoding is None else encoding(inputs.flatten(lead))

    def check(self, weights_MD: Tensor, inputs: Tensor, targets: Tensor, *, shared: bool) -> None:
        """Raise a SettingError if the kernel does not take weights and rows."""
        if not self.takes(weights_MD, inputs, targets, shared=shared):
            raise SettingError(
                f"the network takes rows of {self.network.rows} in {self.dtype}, with targets to match; got "
                f"{tuple(inputs.shape)}, {inputs.dtype} and {tuple(targets.shape)}, {targets.dtype}, for weights of "
                f"shape {tuple(weights_MD.shape)}, {weights_MD.dtype}."
            )


class OnData(NamedTuple):
    """The kernel on all the data, for the kernels of single methods, which take whole steps on it."""

    model: DenseModel
    rows: Batch  # all of them
    scales: Scales  # factors on log likelihood and log prior
    chunk_size: int  # rows that go through a network at once

    @property
    def encoded(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets as the kernel takes them."""
        return self.model.encoded(self.rows.inputs, lead=1), self.rows.targets


_KERNELS: WeakKeyDictionary[Model, DenseModel | UnavailableError] = WeakKeyDictionary()


def kernel_of(model: Model) -> DenseModel | UnavailableError:
    """Return the kernel that runs a model, or why there is none; most plain stacks of layers on a CPU have one."""
    if model not in _KERNELS:
        try:
            _KERNELS[model] = dense_model(model)
        except UnavailableError as error:  # copied, because its traceback holds tensors of earlier calls
            _KERNELS[model] = UnavailableError(str(error))
    return _KERNELS[model]


def dense_model(model: Model) -> DenseModel:
    """Return the kernel for a model.

    Raises an UnavailableError if the model does not qualify, or kernels cannot be built here; the message says why.
    """
    whole = model.network
    if whole.sharded:
        raise UnavailableError("the network is split over processes")
    if whole.precision.devices or {tensor.device for tensor in whole.constants.values()} - {whole.device}:
        raise UnavailableError("the network lies on several devices")
    if model.network.precision.autocast is not None:
        raise UnavailableError("the kernel computes in the dtype of the weights, without autocast")
    module, layout, affine = _within(model)
    dtype = next(module.parameters()).dtype
    network = architecture(module, layout, device=whole.device)
    noise, targets = _noise(model.likelihood, layout, network.layers[-1].fan_out)
    segments = [piece for segment in model.prior.segments for piece in _parts(segment)]
    kernel = DenseKernel(
        layout.size, network.layers, noise=noise, segments=segments, stages=network.stages, affine=affine
    )
    complete = all(isinstance(s.prior, Flat | Closed) for s in model.prior.segments)
    classes, buffers = noise.family == Family.CATEGORICAL, dict(module.named_buffers())
    return DenseModel(kernel, model.prior, complete, network, targets, dtype, classes, buffers)


def _within(model: Model) -> tuple[nn.Module, Layout, Affine | None]:
    """Return the network that runs, the layout of its vector, and its subspace, if there is one.

    Raises an UnavailableError if numbers of different precision would be in one vector.
    """
    space = space_of(model)
    if space is None:
        return model.network.module, model.layout, None
    module, (layout, *affine) = space.whole.network.module, in_parameters(space)
    if any(parameter.dtype != affine[0].dtype for parameter in module.parameters()):
        raise UnavailableError("the network has parameters of several dtypes")
    learned = {name: model.layout.shapes[name] for name in model.layout.names if name.startswith(PREFIX)}
    return module, layout + Layout(learned), (affine[0], affine[1])


def _parts(segment: PriorSegment) -> list[Segment]:
    """Return a segment of the prior as the kernel takes it: element by element where each has its own scale."""
    start, stop, prior = segment.where.start, segment.where.stop, segment.prior
    if isinstance(prior, Normal):
        return [Segment(start, stop, prior.loc, 1 / prior.scale**2)]
    if isinstance(prior, StudentT):
        half, width, grid = (prior.df + 1) / 2, prior.df * prior.scale**2, (1, 1, stop - start, 1)
        return [Segment(start, stop, prior.loc, 0.0, half=half, width=width, grid=grid)]
    if isinstance(prior, SharedVariance):
        return [Segment(start, stop, 0.0, 0.0, half=prior.half, width=prior.width, grid=prior.grid)]
    if not isinstance(prior, LogInverseChi):
        return [Segment(start, stop, 0.0, 0.0)]
    if len(prior.scales) == 1:
        return [Segment(start, stop, math.log(prior.scales[0]), 0.0, prior.df)]
    return [Segment(start + k, start + k + 1, math.log(scale), 0.0, prior.df) for k, scale in enumerate(prior.scales)]


def knows(likelihood: Likelihood) -> bool:
    """Return whether the kernel has a likelihood, for some numbers of outputs and scales."""
    return type(likelihood) in {Gaussian, HeteroscedasticGaussian} or likelihood == Categorical()


def _noise(likelihood: Likelihood, layout: Layout, outputs: int) -> tuple[Noise, int]:
    """Return the kernel's description of the likelihood, and the number of target values per row."""
    if type(likelihood) is Categorical and likelihood == Categorical():
        return Noise(Family.CATEGORICAL), 1
    if type(likelihood) is HeteroscedasticGaussian and outputs % 2 == 0:
        return Noise(Family.HETEROSCEDASTIC, floor=likelihood.floor), outputs // 2
    if type(likelihood) is Gaussian:
        if likelihood.scale == "learned":
            where = layout.slices["likelihood.log_scale"]
            noise = Noise(Family.GAUSSIAN, (), where.start, where.stop - where.start)
        else:
            scales = likelihood.scale if isinstance(likelihood.scale, tuple) else (float(likelihood.scale),)
            noise = Noise(Family.GAUSSIAN, scales, -1, len(scales))
        if noise.num_scales in {1, outputs}:
            return noise, outputs
    raise UnavailableError(f"the kernel does not know {type(likelihood).__name__} for these outputs")
