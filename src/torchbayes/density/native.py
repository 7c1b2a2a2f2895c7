"""The library's own kernel as a backend: which models it runs is in `kernels.py`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor

from torchbayes.checks import SettingError
from torchbayes.density.backend import Backend, Evaluation, Trajectory
from torchbayes.density.dynamics import Phase, Value
from torchbayes.density.kernels import DenseModel, kernel_of
from torchbayes.model.dropout import Mask, dropouts
from torchbayes.model.network import Buffers
from torchbayes.native.build import UnavailableError

_SUMS = "the kernel sums over rows, so it does not mix draws row by row"


class Native(Backend):
    """The library's own kernel, the fastest wherever it runs."""

    name, words, automatic = "native", "the library's own kernel", "wherever it runs"

    @cached_property
    def _kernel(self) -> DenseModel:
        """The kernel of the model; a SettingError without one."""
        kernel = self._known
        if isinstance(kernel, UnavailableError):
            raise SettingError(
                f"plan 'native' cannot run this model: {kernel}. Set another plan, or leave it to 'auto'."
            )
        return kernel

    @cached_property
    def _known(self) -> DenseModel | UnavailableError:
        """The kernel of the model, or why there is none; it draws no random numbers."""
        if self.training and (random := dropouts(self.model.network)):
            return UnavailableError(f"`{random[0]}` is dropout, which the kernel knows in evaluation mode alone")
        return kernel_of(self.model)

    def refuses(self, evaluation: Evaluation) -> str | None:
        kernel = self._known
        if isinstance(kernel, UnavailableError):
            return str(kernel)
        if evaluation.mixing is not None:
            return _SUMS
        if kernel.takes(evaluation.weights_MD, *evaluation.batch, shared=evaluation.shared):
            return None
        return f"the kernel takes rows of {kernel.network.rows} in {kernel.dtype}, with targets to match"

    def evaluate(self, evaluation: Evaluation) -> tuple[Tensor, Tensor]:
        weights_MD, rows, shared, _, _, scales, gradient_MD, prior, mixing = evaluation
        if mixing is not None:
            raise SettingError(f"{_SUMS}. Set another plan than 'native', or leave it to 'auto'.")
        options: dict[str, Any] = {"shared": shared, "scales": scales, "chunk_size": self.chunk_size, "prior": prior}
        return self._kernel.evaluate(weights_MD, rows, gradient_MD=gradient_MD, **options)

    def leapfrog(self, trajectory: Trajectory) -> Phase | None:
        """Return the end of leapfrog steps; None if the kernel does not have the whole density."""
        kernel, scales = self._kernel, trajectory.scales
        if not kernel.complete:
            return None
        weights_MD, momentum_MD, gradient_MD, log_likelihood_M, log_prior_M = kernel.leapfrog(
            trajectory.weights_MD,
            trajectory.momentum_MD,
            gradient_MD=trajectory.gradient_MD,
            rows=trajectory.data,
            scales=scales,
            chunk_size=self.chunk_size,
            step_size_M=trajectory.step_size_M,
            steps_M=trajectory.steps_M,
            inverse_mass_MD=trajectory.inverse_mass_MD,
        )
        log_density_M = scales.likelihood * log_likelihood_M + scales.prior * log_prior_M
        return Phase(weights_MD, momentum_MD, Value(log_density_M, gradient_MD, log_likelihood_M))

    def kernel(self) -> DenseModel:
        return self._kernel

    def outputs(
        self,
        weights_SD: Tensor,
        inputs: Any,
        *,
        buffers_S: Buffers | None,
        chunk_size: int,
        masks_S: Sequence[Mask] | None = None,
    ) -> Tensor | None:
        """Return the outputs of S networks, (S, B, K), in one call; None if the kernel does not take the inputs."""
        del buffers_S  # networks that the kernel runs have none
        kernel = kernel_of(self.model)
        if (
            masks_S is not None
            or isinstance(kernel, UnavailableError)
            or not kernel.takes(weights_SD, inputs, shared=True)
        ):
            return None
        return kernel.kernel.predict(weights_SD, inputs, chunk_size=chunk_size)
