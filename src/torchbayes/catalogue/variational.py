"""Entries of variational methods, backpropagation of moments, particles, ensembles of one run, and flat losses."""

from __future__ import annotations

from functools import partial

from torchbayes.catalogue.entries import Look, MethodEntry
from torchbayes.catalogue.tuned import (
    bounded,
    bsam,
    concrete_dropout,
    ensemble,
    ivon,
    mc_dropout,
    mean_field,
    plain_settings,
    vbll,
)
from torchbayes.methods.cycles.fge import FGE
from torchbayes.methods.cycles.snapshots import Snapshots
from torchbayes.methods.ep.pbp import PBP
from torchbayes.methods.flows.mnf import MNF
from torchbayes.methods.flows.normalizing import NormalizingFlow
from torchbayes.methods.particles.repulsive import RepulsiveEnsemble
from torchbayes.methods.particles.svgd import SVGD
from torchbayes.methods.variational.batch_norm import MCBatchNorm

VARIATIONAL = (
    MethodEntry(
        "mean_field",
        "variational inference: independent normal weights, fitted by a lower bound on the evidence",
        "torchbayes.methods.variational.vi:VI",
        label="mean field",
        usual=mean_field,
        look=Look("#c7509a", "X"),
        also=("vi", "bbb", "bayes_by_backprop"),
        predicts="drawn",
        cost="A training run of about three times the work, and a forward pass for each function drawn.",
        small={"kl_weight": 1.0},
    ),
    MethodEntry(
        "ivon",
        "variational inference: a Gaussian with independent weights, by natural gradients",
        "torchbayes.methods.variational.ivon:IVON",
        label="IVON",
        usual=ivon,
        look=Look("#b5651d", "v"),
        first_of="multiivon",
        predicts="drawn",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "multiivon",
        "variational inference around several solutions: a mixture of Gaussians",
        "torchbayes.methods.variational.ivon:IVON",
        label="MultiIVON",
        usual=partial(ivon, members=5),
        plain={"members": 5},
        look=Look("#8a1538", "d"),
        predicts="drawn",
        cost="One training run for each member, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "normalizing_flow",
        "variational inference: all weights are an invertible map of normal numbers, which is learned",
        "torchbayes.methods.flows.normalizing:NormalizingFlow",
        label="normalising flow",
        usual=partial(bounded, kind=NormalizingFlow),
        look=Look("#0b7285", "p"),
        also=("flow", "planar_flow"),
        predicts="drawn",
        cost="A training run of a few times the work, and a forward pass for each function drawn.",
        small={"kl_weight": 1.0},
    ),
    MethodEntry(
        "mnf",
        "variational inference: normal weights whose layers have random multipliers in common",
        "torchbayes.methods.flows.mnf:MNF",
        label="MNF",
        usual=partial(bounded, kind=MNF),
        look=Look("#7048e8", "s"),
        also=("multiplicative_normalizing_flow",),
        predicts="drawn",
        cost="A training run of a few times the work, and a forward pass for each function drawn.",
        small={"kl_weight": 1.0},
    ),
    MethodEntry(
        "vbll",
        "a network whose last layer is Bayesian, trained with it by a bound without draws",
        "torchbayes.methods.variational.vbll:VBLL",
        label="VBLL",
        usual=vbll,
        look=Look("#1f6f8b", "s"),
        also=("variationallastlayer",),
        predicts="linearised",
        parts="last layer",
        cost="One training run, and one forward pass per prediction.",
    ),
    MethodEntry(
        "pbp",
        "probabilistic backpropagation: independent normal weights, changed by each row in closed form",
        "torchbayes.methods.ep.pbp:PBP",
        label="PBP",
        usual=partial(plain_settings, PBP),
        look=Look("#3d7ea6", "P"),
        also=("probabilistic_backpropagation",),
        predicts="drawn",
        parts="rectifiers",
        cost="40 passes row by row, without a learning rate; a forward pass for each function drawn, or one.",
    ),
    MethodEntry(
        "svgd",
        "several networks that average their gradients and repel each other: Stein variational gradient descent",
        "torchbayes.methods.particles.svgd:SVGD",
        label="SVGD",
        usual=partial(ensemble, kind=SVGD),
        look=Look("#5e3c99", "8"),
        cost="One training run and one forward pass for each particle; they cannot be split over processes.",
    ),
    MethodEntry(
        "repulsive",
        "several networks that repel each other while they train",
        "torchbayes.methods.particles.repulsive:RepulsiveEnsemble",
        label="repulsive ensemble",
        usual=partial(ensemble, kind=RepulsiveEnsemble, plan="loop"),  # no kernel runs in the space of functions
        look=Look("#8b1a4a", ">"),
        cost="One training run and one forward pass for each member; they cannot be split over processes.",
    ),
    MethodEntry(
        "mc_dropout",
        "a network trained with dropout (10 % in a comparison, where it has none), which stays on for predictions",
        "torchbayes.methods.variational.dropout:MCDropout",
        label="MC dropout",
        usual=mc_dropout,
        plain={"plan": "loop"},  # its network gets dropout
        look=Look("#a05a00", "H"),
        predicts="drawn",
        parts="dropout",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "concrete_dropout",
        "MC dropout that learns the rate of each dropout layer",
        "torchbayes.methods.variational.concrete:ConcreteDropout",
        label="concrete dropout",
        usual=concrete_dropout,
        look=Look("#8f4f2f", "<"),
        predicts="drawn",
        parts="dropout",
        cost="One training run, and a forward pass for each function drawn.",
    ),
    MethodEntry(
        "mc_batch_norm",
        "the single network with batch norm, by the statistics of random training minibatches",
        "torchbayes.methods.variational.batch_norm:MCBatchNorm",
        label="MC batch norm",
        usual=partial(plain_settings, MCBatchNorm),
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
