"""The entries of methods that keep networks of one run, or look for flat regions of the loss."""

from __future__ import annotations

from functools import partial

from torchbayes.catalogue.entries import Look, MethodEntry
from torchbayes.catalogue.tuned import bsam, ensemble
from torchbayes.methods.cycles.fge import FGE
from torchbayes.methods.cycles.snapshots import Snapshots

FLAT = (
    MethodEntry(
        "fge",
        "networks of one training run, kept where a learning rate in cycles is lowest: fast geometric ensembling",
        "torchbayes.methods.cycles.fge:FGE",
        label="FGE",
        usual=partial(ensemble, members=1, kind=FGE),
        look=Look("#00838f", "s"),
        also=("fast_geometric_ensemble",),
        cost="One training run, and a forward pass for each network kept.",
    ),
    MethodEntry(
        "snapshots",
        "networks of one training run, kept at the ends of cosine cycles: a snapshot ensemble",
        "torchbayes.methods.cycles.snapshots:Snapshots",
        label="snapshot ensemble",
        usual=partial(ensemble, members=1, kind=Snapshots),
        look=Look("#558b2f", "D"),
        also=("snapshot_ensemble",),
        cost="One training run, and a forward pass for each network kept.",
    ),
    MethodEntry(
        "bsam",
        "a Gaussian with independent weights, by sharpness-aware steps: Bayesian SAM",
        "torchbayes.methods.variational.bsam:BSAM",
        label="bSAM",
        usual=bsam,
        look=Look("#ad1457", "p"),
        also=("bayesian_sam",),
        predicts="drawn",
        cost="Two training runs, and a forward pass for each function drawn.",
    ),
)
