"""Settings of `evidence_random_labels`."""

from __future__ import annotations

from dataclasses import dataclass

# models, as results and tables name them
PROCESS, NETWORK, TUNED = "Gaussian process", "network", "network, prior tuned"


@dataclass(frozen=True)
class RandomLabelsRecipe:
    """Settings of both models; their priors are the same for every share.

    Attributes:
        data: an image data set by name.
        shares: of shuffled labels, in rising order.
        network: a network by name.
        hidden: widths of the hidden layers, for `mlp`.
        train_size: number of training rows of the network, drawn anew for each seed; None for all.
        prior_scale: standard deviation of the normal prior of every weight: wide enough to fit any labels.
        epochs: passes over the data.
        batch_size: rows per step.
        lr: initial learning rate of Adam; it falls to zero.
        classes: the two classes of the Gaussian process.
        process_rows: number of its training rows, of both classes.
        amplitude: standard deviation of its latent function.
        length_scale: of its kernel, in units of root mean square differences of standardised pixels.
        test_rows: number of test images of the network, the first of the test set.
    """

    data: str = "mnist"
    shares: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
    network: str = "mlp"
    hidden: tuple[int, ...] = (100,)
    train_size: int | None = 1000
    prior_scale: float = 1.0
    epochs: int = 200
    batch_size: int = 100
    lr: float = 0.01
    classes: tuple[int, int] = (3, 5)
    process_rows: int = 1000
    amplitude: float = 10.0
    length_scale: float = 0.5
    test_rows: int | None = None


SMALL = RandomLabelsRecipe()

PAPER = RandomLabelsRecipe(
    data="cifar10",
    network="preresnet20",
    train_size=None,
    prior_scale=0.25,
    epochs=300,
    batch_size=128,
    lr=1e-3,
    classes=(0, 1),
    process_rows=10_000,
)
