r"""The posterior of multiplicative normalising flows: multipliers are drawn, then weights given them.

    q(w) = ∫ q(w | z) q(z) dz,    w = z ∘ M + σ ∘ ε    (Louizos and Welling 2017)

Draws are exact. The density is an integral over all multipliers, of which only a bound is known in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from torchbayes.checks import check_counts
from torchbayes.posteriors.flows.multipliers import Multipliers, multiplied
from torchbayes.posteriors.flows.posterior import FLOW, by_member, check_parts, joined, together
from torchbayes.posteriors.posterior import Posterior, normals, readable

_DRAWS = 30


@readable
@dataclass(frozen=True, repr=False)
class MNFPosterior(Posterior):
    """q(w) = (1/M) Σ_m ∫ q_m(w | z) q_m(z) dz.

    Attributes:
        mean_MD: means of the weights where multipliers are 1.
        scale_MD: σ, standard deviations given the multipliers.
        flow_MP: parameters of the multipliers, and of the auxiliary distribution that training needs.
        layers: steps of each flow.
        hidden: units of each step.
    """

    mean_MD: Tensor
    scale_MD: Tensor
    flow_MP: Tensor
    layers: int = 2
    hidden: int = 50

    kind = "mnf"

    def __post_init__(self) -> None:
        check_counts(layers=self.layers, hidden=self.hidden)
        about: dict[str, Any] = {
            "flow": lambda: self.multipliers.layout,
            "of": "the parameters of the multipliers of this network",
        }
        check_parts(self.model, self.mean_MD, self.scale_MD, flow_MP=self.flow_MP, **about)

    @property
    def multipliers(self) -> Multipliers:
        """What multiplies the weights."""
        return Multipliers(multiplied(self.model), self.model.layout.size, self.layers, self.hidden)

    @property
    def members(self) -> int:
        """M."""
        return len(self.mean_MD)

    @property
    def default_draws(self) -> int:
        """The smallest multiple of M that is at least 30."""
        return -(-_DRAWS // self.members) * self.members

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights, each with multipliers of its own.

        Args:
            draws: S, a multiple of M.
            seed: seed of the draws; draw s depends on (seed, s) alone.

        Returns:
            Tensor (S, D).

        Raises:
            ValueError: if S is not a multiple of M, or the weights do not fit in memory.
        """
        draws, own = self.check_draws(draws), self.multipliers
        noise = by_member(normals(seed, draws, own.noise_size, like=self.mean_MD), self.members)
        with torch.no_grad():
            return together(own.draw(self.mean_MD, self.scale_MD, self.flow_MP, noise_MSE=noise).weights_MSD)

    def log_prob(self, weights: Tensor) -> NoReturn:
        """Refuse: log q(w) is an integral over all multipliers.

        Args:
            weights: any.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "the posterior of `MNF` has no density that can be computed: it is an integral over all multipliers, of "
            "which training knows a bound. Draw from it; or fit `NormalizingFlow` or `VI`, whose densities are exact."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return means, scales and the parameters of the multipliers by name."""
        flow = {FLOW + name: part for name, part in self.multipliers.layout.split(self.flow_MP).items()}
        return {"mean_MD": self.mean_MD, "scale_MD": self.scale_MD, **flow}

    def settings(self) -> dict[str, Any]:
        """Return what the flows are made of."""
        return {"layers": self.layers, "hidden": self.hidden}

    @classmethod
    def restore(cls, model: Any, tensors: dict[str, Tensor], settings: dict[str, Any]) -> MNFPosterior:
        """Return the posterior rebuilt from what `tensors` and `settings` gave."""
        about = {name: settings[name] for name in ("layers", "hidden")}
        layout = Multipliers(multiplied(model), model.layout.size, about["layers"], about["hidden"]).layout
        return cls(model, tensors["mean_MD"], tensors["scale_MD"], joined(layout, tensors, FLOW), **about)
