"""VBLL: a network whose last layer alone is Bayesian, trained by a bound without draws (Harrison et al. 2024).

With features φ_n = φ(x_n), q(w_k) = N(w̄_k, S_k) for each output k of the last layer, f_k = w_kᵀ φ, and the normal
prior p of its weights,

    maximise  Σ_n E_q log p(y_n | f_n) − β KL(q ‖ p) + log p(features' weights) + log p(noise)

by gradient descent in all of it together, with β = 1 for Bayes. The first term is exact for normal noise of scale s_k,

    E_q log p(y_n | f_n) = Σ_k [ log N(y_nk; w̄_kᵀ φ_n, s_k²) − ½ φ_nᵀ S_k φ_n / s_k² ],

and for classes a lower bound (`torchbayes.model.likelihoods.expected`), so no step takes a draw. The weights outside
the last layer and a learned noise are points, trained as by MAP. For fixed features and noise, and β = 1, the maximum
is the exact posterior, S_k = (Φᵀ Φ / s_k² + I / s_0²)⁻¹, and its value the log evidence.

Unlike in the paper, logits have no noise of their own here: the likelihood is that of the model. The objective is on
the scale of the mean loss per observation, with the temperature T of the model, as for VI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from torchbayes.density.density import LogDensity
from torchbayes.methods.choices import WEIGHTS, Choice, Epochs, Lowered
from torchbayes.methods.noise import normals
from torchbayes.methods.optimise.descent import Descent, Scheduled, Trajectory
from torchbayes.methods.optimise.optimizers import Adam, Optimizer
from torchbayes.methods.protocol import Shelf
from torchbayes.methods.schedules import Cosine, Schedule
from torchbayes.methods.variational.last_layer import Covariance, LastLayer, Parts, last_layer, outputs_of
from torchbayes.methods.variational.objective import ByMembers
from torchbayes.methods.variational.weighting import Weighting, weight_at
from torchbayes.model.likelihoods.expected import Bound, check_expected, expected_log_prob
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.randomness.seeds import Purpose, seeded

State = Trajectory


@dataclass(frozen=True)
class VBLL(Scheduled, Descent):
    """Variational Bayesian last layer: points for the features, a normal distribution for the last layer.

    For networks that return what their last linear layer gives, an nn.Linear or any other that computes x Wᵀ + b or x
    W + b by weights of its own, under a Gaussian, Categorical or Bernoulli likelihood and a normal prior of these
    weights. `predict` is in closed form for normal noise, and draws outputs for classes: one pass through the network
    either way.

    Attributes:
        covariance: of the weights of each output: "dense", "diagonal" or "low_rank" (with a diagonal).
        members: M, independent runs, whose mixture is the posterior.
        epochs: passes over the data; None lets held-out rows choose them, by training without the spread.
        batch_size: rows per step where the data are not batched already.
        optimizer: update rule and learning rate, on the scale of the mean loss per observation.
        schedule: how the learning rate changes over the run.
        bound: for classes: "jensen", or the tighter "knowles_minka".
        rank: of covariance="low_rank".
        initial_scale: standard deviation of every weight of the last layer at first.
        kl_weight: β: a number, `Halving()` or `WarmUp()`. None lets held-out rows choose a number of at most 1 (see
            `torchbayes.selection.lowered`), by trial runs with independent weights: the bound for classes is loose
            where there are many features, and leaves probabilities too cautious at β = 1.
    """

    covariance: Covariance = "dense"
    members: int = 1
    epochs: int | None = None
    batch_size: int = 128
    optimizer: Optimizer = field(default_factory=lambda: Adam(3e-3))
    schedule: Schedule = field(default_factory=Cosine)
    bound: Bound = "jensen"
    rank: int = 10
    initial_scale: float = 0.01
    kl_weight: float | Weighting | None = None

    plan = "loop"
    by_draws = True
    why = "they are spread wider than the data bear (lower `kl_weight`, or train longer)"

    @property
    def choices(self) -> tuple[Choice, ...]:
        weight = () if self.kl_weight is not None else (Lowered("kl_weight", WEIGHTS, {"covariance": "diagonal"}),)
        return (*((Epochs(self),) if self.epochs is None or not weight else ()), *weight)

    def check(self, model: Model) -> None:
        super().check(model)
        self.layer(model)

    def layer(self, model: Model) -> LastLayer:
        """Return the last layer of a model; ValueError if the method does not suit the model."""
        check_expected(model.likelihood)
        return last_layer(model, self.covariance, rank=self.rank)

    def begin(
        self, density: LogDensity, weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int
    ) -> State:
        """Return the trajectory of each member's weights, followed by the parameters of its covariance."""
        layer = self.layer(density.model)
        like = weights_MD.new_empty(len(weights_MD), sum(layer.sizes))
        noise_MP = normals(seeds, Purpose.LAST_LAYER_FACTOR, 0, like=like)
        parameters_ME = torch.cat([weights_MD, layer.start(self.initial_scale, noise_MP)], 1)
        return super().begin(density, parameters_ME, buffers, seeds=seeds, steps_per_epoch=steps_per_epoch)

    def target(self, density: LogDensity, state: State) -> Bounded:
        """Return the bound; `nll` of a step is the mean of −E_q log p(y | f), or of its bound."""
        return Bounded(
            density.model,
            density.num_data,
            _layer_of(self, density),
            self.bound,
            first=state.step == 0,
            kl_weight=weight_at(self.kl_weight, state),
        )

    def posterior(self, density: LogDensity, state: State, shelf: Shelf | None = None) -> Gaussian:
        """Return the mixture of the members' normal distributions; the variance is 0 outside the last layer."""
        model, layer = density.model, self.layer(density.model)
        mean_MD, parameters_MP = state.weights_MD.split([model.layout.size, sum(layer.sizes)], dim=1)
        covariance = layer.structure(parameters_MP, model.layout.size)
        return Gaussian(
            model, mean_MD.clone(), covariance, buffers_M=state.buffers or None, statistics_known=True, linear=True
        )


@dataclass(frozen=True)
class Bounded(ByMembers):
    """The bound as a loss of weights and covariances."""

    layer: LastLayer
    bound: Bound = "jensen"  # for classes
    first: bool = True  # whether the network's output is checked, which waits for a GPU
    kl_weight: float = 1.0  # β

    def terms(self, parameters_E: Tensor, rows: Batch, *, buffers: Buffers, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        size = self.model.layout.size
        weights_D, parts = parameters_E[:size], self.layer.parts(parameters_E[size:])
        with self.model.network.training(), seeded(Purpose.LAST_LAYER_MASKS, seed, device=weights_D.device):
            fit = self._expected(weights_D, parts, rows, buffers=buffers).sum(dtype=torch.float64)
        return fit, *self._divergence(weights_D, parts)

    def _expected(self, weights_D: Tensor, parts: Parts, batch: Batch, *, buffers: Buffers) -> Tensor:
        """Return E_q log p(y | f), or its bound, of each row, (B,)."""
        views, learned = self.model.split(weights_D)
        mean, features = outputs_of(
            self.model, self.layer, views, inputs=batch.inputs, buffers=buffers, check=self.first
        )
        spread = self.layer.spread(parts, features).reshape(mean.shape)
        return expected_log_prob(
            self.model.likelihood, mean, spread, targets=batch.targets, parameters=learned, bound=self.bound
        )

    def _divergence(self, weights_D: Tensor, parts: Parts) -> tuple[Tensor, Tensor]:
        """Return E_q log p(w) of all weights, and the entropy of q; terms of the last layer are multiplied by β."""
        layer, weight = self.layer, self.kl_weight
        excess = 0.5 * (layer.variance(parts).double() / layer.prior_std_KI.square()).sum()
        prior = self.model.log_prior(weights_D) - weight * excess
        if weight != 1:
            prior = prior + (weight - 1) * layer.log_prior(weights_D)
        return prior, weight * layer.entropy(parts)


_LAYERS: WeakKeyDictionary[LogDensity, tuple[VBLL, LastLayer]] = WeakKeyDictionary()


def _layer_of(method: VBLL, density: LogDensity) -> LastLayer:
    """Return the last layer of a density's model, found once because the search waits for a GPU."""
    entry = _LAYERS.get(density)
    if entry is None or entry[0] != method:
        entry = _LAYERS[density] = method, method.layer(density.model)
    return entry[1]
