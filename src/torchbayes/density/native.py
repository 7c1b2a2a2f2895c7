"""The library's own kernel as a backend: which models it runs is in `kernels.py`."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from torchbayes.density.backend import Backend, Evaluation, Functions, Trajectory, refuse
from torchbayes.density.dynamics import Phase, Value
from torchbayes.density.kernels import DenseModel, kernel_of
from torchbayes.model.dropout import dropouts
from torchbayes.model.model import Batch
from torchbayes.native.build import UnavailableError

_SUMS = "the kernel sums over rows, so it does not mix draws row by row"
_ENCODED = "the kernel encodes columns in the same way for all members"


class Native(Backend):
    """The library's own kernel, the fastest wherever it runs."""

    name, words, automatic = "native", "the library's own kernel", "wherever it runs"

    @cached_property
    def _known(self) -> DenseModel | UnavailableError:
        """The kernel of the model, or why there is none; it draws no random numbers."""
        if self.training and (random := dropouts(self.model.network)):
            return UnavailableError(f"`{random[0]}` is dropout, which the kernel knows in evaluation mode alone")
        return kernel_of(self.model)

    def kernel(self) -> DenseModel:
        if isinstance(self._known, UnavailableError):
            refuse(self.name, str(self._known))
        return self._known  # type: ignore[return-value]

    def refuses(self, evaluation: Evaluation) -> str | None:
        kernel = self._known
        if isinstance(kernel, UnavailableError):
            return str(kernel)
        if evaluation.mixing is not None:
            return _SUMS
        if not kernel.shares(evaluation.buffers):
            return _ENCODED
        if kernel.takes(evaluation.weights_MD, *evaluation.batch, shared=evaluation.shared):
            return None
        return f"the kernel takes rows of {kernel.network.rows} in {kernel.dtype}, with targets to match"

    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, Tensor]:
        weights_MD, rows, shared, buffers, _, scales, gradient_MD, prior, mixing, _ = evaluation
        refuse(self.name, None if mixing is None else _SUMS)
        kernel = self.kernel()
        kernel.check(weights_MD, *rows, shared=shared)
        refuse(self.name, None if kernel.shares(buffers) else _ENCODED)
        rows = Batch(kernel.encoded(rows.inputs, lead=1 if shared else 2), rows.targets)
        into = None if gradient_MD is None else gradient_MD.contiguous()
        log_likelihood_M, log_prior_M = kernel.kernel.evaluate(
            weights_MD, rows, shared=shared, scales=scales, gradient_MD=into, chunk_size=self.chunk_size
        )
        if prior:  # not multiplied by 0, because a derivative may be infinite
            log_prior_M += kernel.prior.add_rest_(into if scales.prior else None, weights_MD, scales.prior)
        if gradient_MD is not None and into is not None and into is not gradient_MD:
            gradient_MD.copy_(into)
        return log_likelihood_M, log_prior_M

    def leapfrog(self, trajectory: Trajectory) -> Phase | None:
        """Return the end of leapfrog steps; None if the kernel does not have the whole density."""
        kernel, scales = self.kernel(), trajectory.scales
        if not kernel.complete:
            return None
        kernel.check(trajectory.weights_MD, *trajectory.data, shared=True)
        start = (trajectory.weights_MD, trajectory.momentum_MD, trajectory.gradient_MD)
        weights_MD, momentum_MD, gradient_MD = (t.clone(memory_format=torch.contiguous_format) for t in start)
        log_likelihood_M, log_prior_M = kernel.kernel.leapfrog(
            (weights_MD, momentum_MD, gradient_MD),
            Batch(kernel.encoded(trajectory.data.inputs, lead=1), trajectory.data.targets),
            step_size_M=trajectory.step_size_M,
            steps_M=trajectory.steps_M,
            inverse_mass_MD=trajectory.inverse_mass_MD,
            scales=scales,
            chunk_size=self.chunk_size,
        )
        log_prior_M += kernel.prior.add_rest_(gradient_MD, weights_MD, 0.0)
        log_density_M = scales.likelihood * log_likelihood_M + scales.prior * log_prior_M
        return Phase(weights_MD, momentum_MD, Value(log_density_M, gradient_MD, log_likelihood_M))

    def outputs(self, functions: Functions) -> Tensor | None:
        """Return the outputs of S networks in one call; None if the kernel does not take the inputs, or for masks."""
        weights_SD, inputs, buffers_S, chunk_size, masks_S = functions
        kernel = self._known
        if masks_S is not None or isinstance(kernel, UnavailableError) or not kernel.shares(buffers_S):
            return None
        if not kernel.takes(weights_SD, inputs, shared=True):
            return None
        return kernel.kernel.predict(weights_SD, kernel.encoded(inputs, lead=1), chunk_size=chunk_size)
