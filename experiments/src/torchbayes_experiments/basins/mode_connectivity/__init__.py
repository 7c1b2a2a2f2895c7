"""Mode connectivity: solutions are joined by curves of low loss, or by straight lines once their units are matched.

Two networks that are trained from different initialisations look like isolated solutions, since the loss is high on the
straight line between them. A curve with a single bend can be trained to join them at low loss (Garipov et al. 2018;
Draxler et al. 2018), and the networks along it predict differently enough to be worth averaging. Where networks are
wide, the straight line itself is low once the hidden units of one are put in the order of the other's (Ainsworth et al.
2022).
"""

from torchbayes_experiments import Experiment, Headline
from torchbayes_experiments.basins.mode_connectivity import report, run

EXPERIMENT = Experiment(
    name="mode_connectivity",
    claim="Independently trained networks are separated by a high loss on the straight line between them, joined at "
    "the ends' loss and error by a Bezier curve or a chain with one bend, whose networks differ and are worth "
    "averaging, and, where they are wide, joined by the straight line once hidden units are matched.",
    source="Garipov, Izmailov, Podoprikhin, Vetrov and Wilson 2018, Loss surfaces, mode connectivity, and fast "
    "ensembling of DNNs; Ainsworth, Hayase and Srinivasa 2022, Git re-basin: merging models modulo permutation "
    "symmetries",
    expected="On CIFAR-10 test errors of 6.8 to 6.9 % at the ends, up to 7.8 % on a Bezier curve and 8.1 % on a chain "
    "(VGG-16), and of 3.7 %, at most 3.9 % on a Bezier curve (WRN-28-10). On CIFAR-100 the largest training loss on a "
    "Bezier curve is that of its ends, and on a chain at most 18 % above. For perceptrons on MNIST a barrier near zero "
    "after matching by weights or by activations (the paper's figure).",
    differences="At the small scale LeNet on 10,000 images of Fashion-MNIST, 12 epochs at the ends and 36 on a curve, "
    "and PreResNet-20 in the place of PreResNet-164, on 2,000 images of CIFAR-10, 12 and 16 epochs: its ends are far "
    "from converged, with test errors near 50 %, and the curves, which are trained longer, fall below them, so that "
    "the residual networks show that a path exists and not the published errors. 13 and 7 positions on a path in the "
    "place of 61, the residual networks on 3,000 test images. No augmentation at any scale, learning rates fall along "
    "a cosine, and training rows are drawn by the seed. Batch-norm statistics are averages over batches of the size of "
    "training. Perceptrons on 20,000 images of MNIST for 10 epochs in the place of all for 100, at 13 positions in the "
    "place of 25. That averages along the curves are better is claimed of LeNet alone. Bounds are ours, with the "
    "published numbers as their measure, and were set before any whole run.",
    recipes={"small": run.SMALL, "paper": run.PAPER},
    cost={
        "small": "a quarter of an hour of one core for a seed",
        "paper": "12 trainings, four of them of PreResNet-20 for 200 epochs on 50,000 images: hours on one GPU (an "
        "estimate; it has not been run)",
    },
    run=run.run,
    summarise=report.summarise,
    headline=Headline("largest training loss on a path, LeNet (nats)", ("largest loss",)),
)
