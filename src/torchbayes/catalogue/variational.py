"""Entries of variational methods, backpropagation of moments, particles, ensembles of one run, and flat losses."""

from __future__ import annotations

from torchbayes.catalogue.entries import Look, MethodEntry
from torchbayes.catalogue.usual import budgeted
from torchbayes.methods.adapters.blob import BLoB
from torchbayes.methods.adapters.tfb import TFB
from torchbayes.methods.cycles.fge import FGE
from torchbayes.methods.cycles.snapshots import Snapshots
from torchbayes.methods.ep.pbp import PBP
from torchbayes.methods.flows.mnf import MNF
from torchbayes.methods.flows.normalizing import NormalizingFlow
from torchbayes.methods.particles.repulsive import RepulsiveEnsemble
from torchbayes.methods.particles.svgd import SVGD
from torchbayes.methods.variational.batch_norm import MCBatchNorm
from torchbayes.methods.variational.bsam import BSAM
from torchbayes.methods.variational.concrete import ConcreteDropout
from torchbayes.methods.variational.dropout import MCDropout
from torchbayes.methods.variational.ivon import IVON
from torchbayes.methods.variational.vbll import VBLL
from torchbayes.methods.variational.vi import VI

VARIATIONAL = (
    MethodEntry(
        "mean_field",
        "variational inference: independent normal weights, fitted by a lower bound on the evidence",
        VI,
        label="mean field",
        usual=budgeted(VI, times=5, optimizer=VI().optimizer, kl_weight=1.0),
        look=Look("#c7509a", "X"),
        also=("vi", "bbb", "bayes_by_backprop"),
        predicts="drawn",
        cost="A training run of about three times the work, and a forward pass for each function drawn.",
        small={"kl_weight": 1.0},
    ),
    MethodEntry(
        "ivon",
        "variational inference: a Gaussian with independent weights, by natural gradients",
        IVON,
        label="IVON",
        usual=budgeted(IVON, times=5),  # its scales take long
        look=Look("#b5651d", "v"),
        first_of="multiivon",
        predicts="drawn",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "multiivon",
        "variational inference around several solutions: a mixture of Gaussians",
        IVON,
        label="MultiIVON",
        usual=budgeted(IVON, times=5, members=5),
        plain={"members": 5},
        look=Look("#8a1538", "d"),
        predicts="drawn",
        cost="One training run for each member, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "normalizing_flow",
        "variational inference: all weights are an invertible map of normal numbers, which is learned",
        NormalizingFlow,
        label="normalising flow",
        usual=budgeted(NormalizingFlow, kl_weight=1.0),
        look=Look("#0b7285", "p"),
        also=("flow", "planar_flow"),
        predicts="drawn",
        cost="A training run of a few times the work, and a forward pass for each function drawn.",
        small={"kl_weight": 1.0},
    ),
    MethodEntry(
        "mnf",
        "variational inference: normal weights whose layers have random multipliers in common",
        MNF,
        label="MNF",
        usual=budgeted(MNF, kl_weight=1.0),
        look=Look("#7048e8", "s"),
        also=("multiplicative_normalizing_flow",),
        predicts="drawn",
        cost="A training run of a few times the work, and a forward pass for each function drawn.",
        small={"kl_weight": 1.0},
    ),
    MethodEntry(
        "vbll",
        "a network whose last layer is Bayesian, trained with it by a bound without draws",
        VBLL,
        label="VBLL",
        usual=budgeted(VBLL, kl_weight=1.0),
        look=Look("#1f6f8b", "s"),
        also=("variationallastlayer",),
        predicts="linearised",
        parts="last layer",
        cost="One training run, and one forward pass per prediction.",
    ),
    MethodEntry(
        "blob",
        "low-rank adapters with one factor normal, the other trained along with it",
        BLoB,
        label="BLoB",
        look=Look("#a44a3f", "h"),
        also=("bayesian_lora_by_backprop",),
        predicts="drawn",
        parts="adapters",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "tfb",
        "a Gaussian around trained low-rank adapters, as wide as the loss on the training rows bears",
        TFB,
        label="TFB",
        look=Look("#6c584c", "<"),
        also=("training_free_bayesianization",),
        start="single",
        predicts="drawn",
        parts="adapters",
        cost="Some passes over the rows with ten draws each, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "pbp",
        "probabilistic backpropagation: independent normal weights, changed by each row in closed form",
        PBP,
        label="PBP",
        look=Look("#3d7ea6", "P"),
        also=("probabilistic_backpropagation",),
        predicts="drawn",
        parts="rectifiers",
        cost="40 passes row by row, without a learning rate; a forward pass for each function drawn, or one.",
    ),
    MethodEntry(
        "svgd",
        "several networks that average their gradients and repel each other: Stein variational gradient descent",
        SVGD,
        label="SVGD",
        usual=budgeted(SVGD, members=5),
        look=Look("#5e3c99", "8"),
        cost="One training run and one forward pass for each particle; they cannot be split over processes.",
    ),
    MethodEntry(
        "repulsive",
        "several networks that repel each other while they train",
        RepulsiveEnsemble,
        label="repulsive ensemble",
        usual=budgeted(RepulsiveEnsemble, members=5, plan="loop"),
        plain={"plan": "loop"},  # no kernel runs in the space of functions
        look=Look("#8b1a4a", ">"),
        cost="One training run and one forward pass for each member; they cannot be split over processes.",
    ),
    MethodEntry(
        "mc_dropout",
        "a network trained with dropout (10 % in a comparison, where it has none), which stays on for predictions",
        MCDropout,
        label="MC dropout",
        usual=budgeted(MCDropout, plan="loop"),
        plain={"plan": "loop"},  # its network gets dropout
        look=Look("#a05a00", "H"),
        predicts="drawn",
        parts="dropout",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "concrete_dropout",
        "MC dropout that learns the rate of each dropout layer",
        ConcreteDropout,
        label="concrete dropout",
        usual=budgeted(ConcreteDropout),
        look=Look("#8f4f2f", "<"),
        predicts="drawn",
        parts="dropout",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "mc_batch_norm",
        "the single network with batch norm, by the statistics of random training minibatches",
        MCBatchNorm,
        label="MC batch norm",
        look=Look("#6b8e23", "d"),
        start="single",
        predicts="drawn",
        parts="batch norm",
        cost="The single network, a forward pass for each minibatch, and one for each function drawn.",
    ),
)

FLAT = (
    MethodEntry(
        "fge",
        "networks of one training run, kept where a learning rate in cycles is lowest: fast geometric ensembling",
        FGE,
        label="FGE",
        usual=budgeted(FGE),
        look=Look("#00838f", "s"),
        also=("fast_geometric_ensemble",),
        cost="One training run, and a forward pass for each network kept.",
    ),
    MethodEntry(
        "snapshots",
        "networks of one training run, kept at the ends of cosine cycles: a snapshot ensemble",
        Snapshots,
        label="snapshot ensemble",
        usual=budgeted(Snapshots),
        look=Look("#558b2f", "D"),
        also=("snapshot_ensemble",),
        cost="One training run, and a forward pass for each network kept.",
    ),
    MethodEntry(
        "bsam",
        "a Gaussian with independent weights, by sharpness-aware steps: Bayesian SAM",
        BSAM,
        label="bSAM",
        usual=budgeted(BSAM),
        look=Look("#ad1457", "p"),
        also=("bayesian_sam",),
        predicts="drawn",
        cost="Two training runs, and a forward pass for each function drawn.",
    ),
)
