"""What is compared on what: the settings of a comparison, and which fit serves which method."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torchbayes.catalogue.config import Problem
from torchbayes.catalogue.usual import OPTIMISED, SAMPLED
from torchbayes.checks import plain
from torchbayes.data import CORRUPTIONS
from torchbayes.data.base import check_name
from torchbayes.methods import HMC, MAP, SGHMC, SGLD, SWAG, Laplace
from torchbayes.methods.protocol import Method
from torchbayes.methods.sampler import Sampler
from torchbayes.methods.schedules import Cycles

LABELS = {
    "single": "single network",
    "laplace": "Laplace",
    "ensemble": "deep ensemble",
    "swag": "SWAG",
    "multiswag": "MultiSWAG",
    "sgld": "SGLD",
    "sghmc": "SGHMC",
    "csghmc": "cSGHMC",
    "hmc": "HMC",
}
REFERENCE = "reference"
"""The name of a reference that is read from a directory; the label of its row too."""
FIRST_OF = {"single": "ensemble", "swag": "multiswag"}
"""Methods that are the first member of another method's fit."""
FITS = ("ensemble", "multiswag", "laplace", *SAMPLED)
"""Names of the settings of fits."""


@dataclass(frozen=True)
class Comparison:
    """What is compared on what; everything that decides the numbers.

    Attributes:
        problem: data, network, likelihood and prior.
        ensemble: the fit behind the deep ensemble and the single network.
        multiswag: the fit behind MultiSWAG and SWAG.
        laplace: the Laplace approximation at the single network; its predictive is the linearised one.
        hmc: Hamiltonian Monte Carlo, the reference where it is among the methods.
        sgld: stochastic gradient Langevin dynamics.
        sghmc: stochastic gradient Hamiltonian Monte Carlo.
        csghmc: cyclical SGHMC.
        methods: some of single, laplace, ensemble, swag, multiswag, sgld, sghmc, csghmc, hmc.
        corruptions: names of the image corruptions, each at severities 1 to 5; all by default where there are images.
        rows: test images that are corrupted, and images of each foreign set.
        draws: functions drawn from SWAG and from MultiSWAG, a multiple of the members; samplers give all they kept.
        reference: directory of a fit, such as a long HMC run, that all methods are compared with in the place of `hmc`.
        seed: seed of fits, draws and corruptions.
    """

    problem: Problem
    ensemble: MAP
    multiswag: SWAG
    laplace: Laplace = Laplace()  # noqa: RUF009  (frozen and stateless, like those below)
    hmc: HMC = HMC()  # noqa: RUF009
    sgld: SGLD = SGLD()  # noqa: RUF009
    sghmc: SGHMC = SGHMC()  # noqa: RUF009
    csghmc: SGHMC = field(default_factory=lambda: SGHMC(schedule=Cycles()))
    methods: tuple[str, ...] = OPTIMISED
    corruptions: tuple[str, ...] = CORRUPTIONS
    rows: int = 1000
    draws: int = 30
    reference: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check what can be checked before hours of fitting.

        Raises:
            ValueError: if a name is unknown or a number does not fit.
        """
        plain(self)
        for method in self.methods:
            check_name("method", method, LABELS)
        for corruption in self.corruptions:
            check_name("corruption", corruption, CORRUPTIONS)
        if not self.methods or self.rows < 1:
            raise ValueError(
                f"a comparison needs at least one method and one row; got {len(self.methods)} and {self.rows}."
            )
        members = self.multiswag.members if "multiswag" in self.methods else 1
        if self.draws < 1 or self.draws % members:
            low, high = self.draws // members * members, (self.draws // members + 1) * members
            raise ValueError(
                f"`draws` must be a multiple of MultiSWAG's {members} members; got {self.draws}. "
                f"Try {f'{low} or ' if low > 0 else ''}{high}."
            )

    @property
    def compared_with(self) -> str | None:
        """The name of the reference's outcome; None if there is no reference."""
        if self.reference is not None:
            return REFERENCE
        return "hmc" if "hmc" in self.methods else None

    def fit_of(self, name: str) -> tuple[str, Method | Sampler]:
        """Return the fit that serves a method.

        Args:
            name: of the method.

        Returns:
            The method that the fit is named by, and its settings: a single network is the first member of the ensemble
            where there is one, else a fit of its own with one member; SWAG likewise.
        """
        many = FIRST_OF.get(name, name)
        if many in self.methods:
            return many, getattr(self, many)
        return name, replace(getattr(self, many), members=1)


def label_of(name: str) -> str:
    """Return how a method is called in tables and figures."""
    return LABELS.get(name, name)
