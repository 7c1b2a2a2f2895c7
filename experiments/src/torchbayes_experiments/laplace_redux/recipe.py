"""Settings of `laplace_redux`."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.optimizers import Adam
from torchbayes.model.priors.univariate import Normal

MODE, ENSEMBLE = "MAP", "deep ensemble"
VARIANTS = ("LA", "LA*", "Laplace, all layers")
METHODS = (MODE, *VARIANTS, ENSEMBLE)


@dataclass(frozen=True)
class LaplaceReduxRecipe:
    """Settings of the training and of the evaluation.

    Attributes:
        data: an image data set by name.
        foreign: out-of-distribution data sets by name.
        network: a network by name.
        train_size: number of training rows, drawn with seed 0; None for all.
        weight_decay: λ on the mean loss: the prior is N(0, 1/(λN)) for every weight.
        members: M of the deep ensemble; the first member is the MAP. With one there is no ensemble.
        epochs: passes over the data.
        batch_size: rows per step.
        lr: learning rate of Adam, which falls to zero along a cosine.
        rows_per_pass: rows per step of the pass that sums the curvature.
        test_rows: number of test images, drawn with seed 0; None for all.
        foreign_rows: number of images of each foreign set, drawn with seed 0; None for all.
        plan: how the members are run; fixed, because a plan chosen by measurement may round differently in each run.
    """

    data: str = "mnist"
    foreign: tuple[str, ...] = ("fashion_mnist", "kmnist", "notmnist")
    network: str = "lenet"
    train_size: int | None = None
    weight_decay: float = 5e-4
    members: int = 5
    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3
    rows_per_pass: int = 1000
    test_rows: int | None = 3000
    foreign_rows: int | None = 1000
    plan: str = "native"

    def prior(self, num_data: int) -> Normal:
        """Return the prior that is equivalent to the weight decay on the mean loss of N rows."""
        return Normal((self.weight_decay * num_data) ** -0.5)

    def ensemble(self) -> MAP:
        """Return the deep ensemble's method."""
        return MAP(self.members, self.epochs, self.batch_size, Adam(self.lr), plan=self.plan)

    def laplace(self, variant: str) -> Laplace:
        """Return one of `VARIANTS` of the Laplace approximation, with its prior precision chosen by the evidence."""
        if variant == "LA*":
            return Laplace("dense", "empirical", "scalar", batch_size=self.rows_per_pass)
        return Laplace("kronecker", "ggn", "scalar", batch_size=self.rows_per_pass)


SMALL = LaplaceReduxRecipe()
PAPER = LaplaceReduxRecipe(epochs=100, test_rows=None, foreign_rows=None, plan="loop")
