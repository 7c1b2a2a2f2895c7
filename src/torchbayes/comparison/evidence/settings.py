"""Settings of a comparison of networks by their evidence, checked before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from torchbayes import networks
from torchbayes.catalogue.config import entries
from torchbayes.catalogue.problem import Problem
from torchbayes.checks import check_choice, plain
from torchbayes.data.base import check_name
from torchbayes.methods.laplace.laplace import CurvatureName, Laplace, StructureName
from torchbayes.methods.optimise.map import MAP

ALIASES = {"cnn": "small_cnn"}
TunedPrior = Literal["model", "scalar", "layer"]
TUNED = get_args(TunedPrior)


@dataclass(frozen=True)
class Settings:
    """What is compared and how.

    Attributes:
        problem: data, likelihood and the initial prior; its network settings are those of `mlp`.
        map: how each network is trained, and trained again under each prior that was chosen. If its epochs are open,
            held-out rows choose those of the first training, and the others take as many as come near a mode.
        networks: names of networks; `cnn` is short for `small_cnn`.
        tune_prior: whose scale the evidence chooses: "model" (none), "scalar" (one) or "layer" (one for each layer); a
            prior that is not normal is then replaced by the normal with its curvature.
        rounds: how often the networks are trained again under the chosen prior, which moves the mode.
        structure: of the Laplace approximation.
        curvature: of the Laplace approximation.
        seed: of initialisation and data order.
    """

    problem: Problem
    map: MAP
    networks: tuple[str, ...] = ("linear", "mlp", "cnn")
    tune_prior: TunedPrior = "layer"
    rounds: int = 4
    structure: StructureName = "kronecker"
    curvature: CurvatureName = "ggn"
    seed: int = 0

    def __post_init__(self) -> None:
        plain(self)
        if not self.networks:
            raise ValueError("`networks` must name at least one network; got none. Try: --networks linear mlp cnn.")
        for name in self.networks:
            check_name("network", name, [*networks.names(), *ALIASES])
        twice = sorted({n for n in self.networks if self.networks.count(n) > 1})
        if twice:
            raise ValueError(f"`networks` must name each network once; got {', '.join(twice)} more often.")
        check_choice(TUNED, tune_prior=self.tune_prior)
        if self.rounds < 0:
            raise ValueError(f"`rounds` must not be negative; got {self.rounds}. 0 trains once.")
        Laplace(self.structure, self.curvature, prior="model")  # raises if structure and curvature do not go together
        if self.problem.temperature != 1:
            raise ValueError(f"the evidence is that of T = 1; got temperature {self.problem.temperature}.")

    def problem_of(self, network: str) -> Problem:
        """Return the problem of one of the networks."""
        settings = self.problem.network_settings if network == "mlp" else {}
        return replace(self.problem, network=ALIASES.get(network, network), network_settings=settings)

    def config(self) -> dict[str, Any]:
        """Return the settings as a configuration file holds them."""
        problem = {name: value for name, value in entries(self.problem).items() if name != "network"}
        method = {name: value for name, value in entries(self.map).items() if name not in {"members", "plan"}}
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in {"problem", "map", "networks"}}
        return {**problem, "map": method, "networks": list(self.networks), **options}
