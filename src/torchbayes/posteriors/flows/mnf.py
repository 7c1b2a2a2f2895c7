"""The posterior of multiplicative normalising flows: multipliers are drawn first, then weights given the multipliers.

    q(w) = ∫ q(w | z) q(z) dz,    w = z ∘ M + σ ∘ ε    (Louizos and Welling 2017)

Draws are exact. The density is an integral over all multipliers; training uses a bound on it.
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
        description: dict[str, Any] = {
            "flow": lambda: self.multipliers.layout,
            "of": "the parameters of the multipliers of this network",
        }
        check_parts(self.model, self.mean_MD, self.scale_MD, flow_MP=self.flow_MP, **description)

    @property
    def multipliers(self) -> Multipliers:
        """The distribution of the multipliers."""
        return Multipliers(multiplied(self.model), self.model.layout.size, self.layers, self.hidden)

    @property
    def members(self) -> int:
        return len(self.mean_MD)

    @property
    def default_draws(self) -> int:
        return -(-_DRAWS // self.members) * self.members

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        draws, multipliers = self.check_draws(draws), self.multipliers
        noise = by_member(normals(seed, draws, multipliers.noise_size, like=self.mean_MD), self.members)
        with torch.no_grad():
            return together(multipliers.draw(self.mean_MD, self.scale_MD, self.flow_MP, noise_MSE=noise).weights_MSD)

    def log_prob(self, weights: Tensor) -> NoReturn:
        """Refuse, because log q(w) is an integral over all multipliers.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "the posterior of `MNF` has no density that can be computed: it is an integral over all multipliers, of "
            "which training knows a bound. Draw from it; or fit `NormalizingFlow` or `VI`, whose densities are exact."
        )

    def tensors(self) -> dict[str, Tensor]:
        flow = {FLOW + name: part for name, part in self.multipliers.layout.split(self.flow_MP).items()}
        return {"mean_MD": self.mean_MD, "scale_MD": self.scale_MD, **flow}

    def settings(self) -> dict[str, Any]:
        return {"layers": self.layers, "hidden": self.hidden}

    @classmethod
    def restore(cls, model: Any, tensors: dict[str, Tensor], settings: dict[str, Any]) -> MNFPosterior:
        """Return the posterior rebuilt from what `tensors` and `settings` gave."""
        sizes = {name: settings[name] for name in ("layers", "hidden")}
        layout = Multipliers(multiplied(model), model.layout.size, sizes["layers"], sizes["hidden"]).layout
        return cls(model, tensors["mean_MD"], tensors["scale_MD"], joined(layout, tensors, FLOW), **sizes)
