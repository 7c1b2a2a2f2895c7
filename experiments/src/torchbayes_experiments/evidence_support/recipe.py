"""Settings of `evidence_support`."""

from __future__ import annotations

from dataclasses import dataclass

from torchbayes.methods.laplace.tuning import Groups

# sets of labels, as results and tables name them
STRUCTURED, NOISY, RANDOM = "structured", "noisy labels", "random labels"


@dataclass(frozen=True)
class SupportRecipe:
    """Settings of all networks.

    Attributes:
        data: an image data set by name.
        networks: by name, in the expected order of evidence on structured data, the lowest first.
        hidden: widths of the hidden layers of `mlp`.
        train_size: number of training rows, drawn anew for each seed; None for all.
        noise: share of the labels that are shuffled in the noisy set; in the random set all are.
        prior_scale: standard deviation of the normal prior of every weight, before it is tuned.
        groups: "scalar" or "layer": which factors on the prior's precision the evidence chooses.
        epochs: of the first training.
        again: epochs of each further training, under the prior that the evidence has chosen.
        rounds: number of further trainings.
        batch_size: rows per step.
        lr: initial learning rate of Adam; it falls to zero.
        lr_again: the same for the further trainings.
        test_rows: number of test images, the first of the test set.
    """

    data: str = "mnist"
    networks: tuple[str, ...] = ("linear", "mlp", "small_cnn")
    hidden: tuple[int, ...] = (50,)
    train_size: int | None = 10_000
    noise: float = 0.25
    prior_scale: float = 0.2
    groups: Groups = "layer"
    epochs: int = 15
    again: int = 8
    rounds: int = 2
    batch_size: int = 100
    lr: float = 5e-3
    lr_again: float = 2e-3
    test_rows: int = 1000

    def shares(self) -> dict[str, float]:
        """Return the share of shuffled labels of each set."""
        return {STRUCTURED: 0.0, NOISY: self.noise, RANDOM: 1.0}


SMALL = SupportRecipe()

PAPER = SupportRecipe(
    data="cifar10",
    networks=("linear", "mlp", "resnet20_frn"),
    hidden=(500,),
    train_size=None,
    epochs=100,
    again=50,
    test_rows=10_000,
)
