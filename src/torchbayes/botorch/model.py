"""A posterior of the library as a `Model` of BoTorch: what acquisition functions ask of a surrogate."""

from __future__ import annotations

from copy import copy
from typing import Any, Literal, Self

import torch
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.model import FantasizeMixin, Model
from torch import Tensor

from torchbayes.botorch.draws import DrawnPosterior
from torchbayes.botorch.states import Conditioned, Weighted
from torchbayes.botorch.values import source_of, targets_of
from torchbayes.checks import as_seed, check_choice, check_kind, optional, seen

Form = Literal["auto", "draws", "normal"]
_ASKED = "a posterior of one model gives no rows to fit anew: make the surrogate by torchbayes.botorch.surrogate"


class PosteriorModel(Model, FantasizeMixin):
    """A posterior over networks as a surrogate.

    Functions are drawn once and are the same for all points, so that q points are judged together and optimisers of
    acquisition functions see a smooth function, whose gradient flows to X. The linearised form of a Laplace posterior,
    and of one over a last layer, is a normal over functions instead, with the covariance of the q points.

    Attributes:
        network_posterior: the posterior over networks, as it was given.
        train_inputs: the rows of a surrogate, as BoTorch's models have them; there are none without `surrogate`.
        train_targets: likewise their targets.
    """

    network_posterior: Any
    train_inputs: Any
    train_targets: Any
    _recipe: Any = None

    def __init__(
        self,
        posterior: Any,
        *,
        draws: int | None = None,
        seed: int = 0,
        form: Form = "auto",
        input_transform: Any = None,
        outcome_transform: Any = None,
        num_inputs: int | None = None,
    ) -> None:
        """Draw the functions.

        Args:
            posterior: what `fit` returns, functions drawn from it, or a `Linearised` one. Its likelihood must be one of
                numbers, and its network takes rows (B, d).
            draws: S, a multiple of the members; the posterior's default if None. For a Laplace posterior, or one of a
                last layer, the default is the closed form.
            seed: seed of the draws.
            form: "auto"; "draws", functions even where there is a closed form; "normal": the closed form, or else a
                normal with mean and covariance of the draws. Entropy searches need it.
            input_transform: of BoTorch, such as `Normalize`, from X to what the network was fitted on.
            outcome_transform: of BoTorch, such as `Standardize`, from targets to those the network was fitted on.
            num_inputs: d, the numbers in a row that the network takes; that of its first linear layer if None.

        Raises:
            TypeError: if it is no posterior.
            ValueError: if targets have no mean or variance, or `draws` does not fit.
        """
        super().__init__()
        check_choice(("auto", "draws", "normal"), form=form)
        self.network_posterior = posterior
        self.source = source_of(posterior, draws, seed=as_seed(seed), drawn=form == "draws")
        self._targets = targets_of(self.source, num_inputs)
        normal = form == "normal" or not self.source.draws
        self.state: Weighted | Conditioned = Conditioned(self.source) if normal else Weighted(self.source)
        self.likelihood = None  # which `fantasize` reads
        if input_transform is not None:
            self.input_transform = input_transform
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        self.eval()

    def _set_transformed_inputs(self) -> None:
        """Do nothing: the rows of the fit are kept as they were given."""

    @property
    def num_outputs(self) -> int:
        """m, the number of targets."""
        return self._targets if self.state.targets is None else len(self.state.targets)

    @property
    def batch_shape(self) -> torch.Size:
        """Empty; of a model that was conditioned on several sets of observations, their shape."""
        return self.state.batch_shape

    def posterior(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Return what the surrogate says at points, differentiable in them.

        Args:
            X: (..., q, d).
            output_indices: which targets; all if None.
            observation_noise: whether the noise of targets is added. A tensor gives its variances, (..., 1 or q, m), in
                units of the transformed targets.
            posterior_transform: of BoTorch.

        Returns:
            A `DrawnPosterior`, or a `GPyTorchPosterior` in the normal form.

        Raises:
            ValueError: if the network does not take such points.
        """
        self.eval()
        check_points(X)
        X = self.transform_inputs(X)
        units, state = getattr(self, "outcome_transform", None), self.state
        if output_indices is not None:
            state, units = state.of(output_indices), units and units.subset_output(output_indices)
        result = state.posterior(X, observation_noise, units)
        if posterior_transform is None:
            return result
        weights = getattr(posterior_transform, "weights", None)
        if weights is not None and isinstance(result, DrawnPosterior):
            return result.weighed(weights, posterior_transform.offset)
        return posterior_transform(posterior=result, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **_: Any) -> Self:
        """Return the model given further observations, by Bayes' rule on the draws or the normal as they are.

        Draws get weights, p_s ∝ Π_i N(y_i; f_s(x_i), σ_s²), which is exact for the S functions there are; few of them
        are left after several observations (`state.effective_draws`). A normal over functions is conditioned in closed
        form, which for a linearised network is the update of its weights with the posterior as their prior. Rows that
        were really observed are best added by `refit`.

        Args:
            X: rows (..., n, d).
            Y: their targets (sets, ..., n, m); a batch of them gives a batch of models.
            noise: variances of the targets, in units of the transformed targets; those of the likelihood if None.

        Returns:
            A model of the same kind.

        Raises:
            TypeError: if rows, targets or noise are no tensors.
            ValueError: if rows and targets do not fit, or are not finite.
        """
        self.eval()
        check_observations(X, Y, targets=self.num_outputs)
        optional(check_kind, Tensor, "a tensor of variances, such as (1, m)", noise=noise)
        X = self.transform_inputs(X)
        if hasattr(self, "outcome_transform"):
            Y, _noise = self.outcome_transform(Y, X=X)
        made = copy(self)
        made.state = self.state.given(X, Y, noise)
        return made

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model of some targets.

        Args:
            idcs: their numbers.
        """
        made = copy(self)
        made._modules, made.state = dict(self._modules), self.state.of(idcs)
        if hasattr(self, "outcome_transform"):
            made.outcome_transform = self.outcome_transform.subset_output(idcs)
        return made

    def refit(self, X: Tensor, Y: Tensor, *, warm: bool = True) -> PosteriorModel:
        """Return the surrogate fitted to its rows and further ones.

        Args:
            X: further rows (n, d).
            Y: their targets (n, m).
            warm: whether the fit begins at the weights of this one.

        Raises:
            ValueError: if the surrogate was not made by `surrogate`, or rows and targets do not fit.
        """
        if self._recipe is None:
            raise ValueError(f"{_ASKED}.")
        return self._recipe.refitted(self, X, Y, warm=warm)


def thompson(model: PosteriorModel, *, seed: int = 0) -> GenericDeterministicModel:
    """Return one function of the surrogate, held fixed, as a deterministic model: a Thompson sample.

    Its maximum is the next point; BoTorch's optimiser takes its `PosteriorMean`. For a batch of q points, q seeds give
    q functions. With several targets it is a vector-valued function, for multi-objective acquisitions.

    Args:
        model: the surrogate.
        seed: which function is drawn.

    Raises:
        ValueError: if a normal form was conditioned, or draws have one weighting for each of several sets.
    """
    check_kind(PosteriorModel, "a surrogate of torchbayes", model=model)
    drawn, state = model.state.fixed(as_seed(seed)), model.state
    if drawn is None:
        raise ValueError(
            "a function is drawn from a posterior, and this model was conditioned on observations that are not in it. "
            "Draw from the model before, or add the observations by `refit`."
        )

    def function(X: Tensor) -> Tensor:
        model.eval()
        inputs = model.transform_inputs(X)
        mean = drawn.values(inputs).mean_SqM
        mean = mean if state.targets is None else mean[..., state.targets]
        if hasattr(model, "outcome_transform"):
            mean, _ = model.outcome_transform.untransform(mean, X=inputs)
        return mean.squeeze(-3)

    return GenericDeterministicModel(function, num_outputs=model.num_outputs, batch_shape=torch.Size())


def check_points(X: Any) -> None:
    """Raise a TypeError or ValueError unless X is floating point (..., q, d)."""
    if not isinstance(X, Tensor):
        raise TypeError(f"`X` must be a tensor; got {seen(X)}.")
    if not X.is_floating_point() or X.ndim < 2:
        raise ValueError(f"`X` must be floating point (..., q, d); got {_shape(X)}.")


def check_observations(X: Any, Y: Any, *, targets: int | None = None) -> None:
    """Raise a TypeError or ValueError unless X (..., n, d) and Y (..., n, m) are finite and have the same rows."""
    check_points(X)
    if not isinstance(Y, Tensor):
        raise TypeError(f"`Y` must be a tensor; got {seen(Y)}.")
    if not Y.is_floating_point() or Y.ndim < 2:
        raise ValueError(f"`Y` must be floating point (..., n, m), with an axis of targets; got {_shape(Y)}.")
    if X.shape[-2] != Y.shape[-2]:
        raise ValueError(f"`X` and `Y` must have the same number of rows; got {X.shape[-2]} and {Y.shape[-2]}.")
    if targets is not None and Y.shape[-1] != targets:
        raise ValueError(f"`Y` must have {targets} targets in each row; got {Y.shape[-1]}.")
    for name, values in {"X": X, "Y": Y}.items():
        if not values.isfinite().all():
            bad = int((~values.isfinite()).sum())
            raise ValueError(f"`{name}` must be finite; {bad} of its {values.numel()} numbers are NaN or infinite.")


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
