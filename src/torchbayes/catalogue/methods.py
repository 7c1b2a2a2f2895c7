"""Methods by name, one entry each, for comparisons, the command line, reports and pages.

A method of the library is added here: its import, its name in `__all__`, by which `torchbayes` has it, and its entry,
which stands in `chains.py` for Markov chains and in `variational.py` for what is listed there.
A user's method comes by import path or entry point (`method_named`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torchbayes.catalogue.chains import CHAINS
from torchbayes.catalogue.entries import Look, MethodEntry, Settings
from torchbayes.catalogue.imports import load_path, path_of, registered
from torchbayes.catalogue.usual import budgeted, laplace, online_laplace
from torchbayes.catalogue.variational import FLAT, VARIATIONAL
from torchbayes.checks import seen
from torchbayes.methods.adapters.blob import BLoB
from torchbayes.methods.adapters.tfb import TFB
from torchbayes.methods.curves.curve import Curve
from torchbayes.methods.curves.simplex import Simplex
from torchbayes.methods.cycles.fge import FGE
from torchbayes.methods.cycles.snapshots import Snapshots
from torchbayes.methods.ep.ep import EP
from torchbayes.methods.ep.pbp import PBP
from torchbayes.methods.flows.mnf import MNF
from torchbayes.methods.flows.normalizing import NormalizingFlow
from torchbayes.methods.langevin.mams import MAMS
from torchbayes.methods.langevin.mile import MILE
from torchbayes.methods.langevin.unadjusted import MCLMC, UnderdampedLangevin
from torchbayes.methods.laplace.laplace import Laplace
from torchbayes.methods.laplace.online import OnlineLaplace
from torchbayes.methods.mcmc.elliptical import EllipticalSlice
from torchbayes.methods.mcmc.hmc import HMC
from torchbayes.methods.mcmc.metropolis import MALA, RandomWalk
from torchbayes.methods.mcmc.nuts import NUTS
from torchbayes.methods.optimise.map import MAP
from torchbayes.methods.optimise.swa import SWA
from torchbayes.methods.optimise.swag import SWAG
from torchbayes.methods.particles.repulsive import RepulsiveEnsemble
from torchbayes.methods.particles.svgd import SVGD
from torchbayes.methods.sgmcmc.sghmc import SGHMC
from torchbayes.methods.sgmcmc.sgld import SGLD
from torchbayes.methods.sgmcmc.sgnht import SGNHT
from torchbayes.methods.sgmcmc.smile import SMILE
from torchbayes.methods.variational.batch_norm import MCBatchNorm
from torchbayes.methods.variational.bsam import BSAM
from torchbayes.methods.variational.concrete import ConcreteDropout
from torchbayes.methods.variational.dropout import MCDropout
from torchbayes.methods.variational.ivon import IVON
from torchbayes.methods.variational.vbll import VBLL
from torchbayes.methods.variational.vi import VI

# fmt: off
__all__ = [
    "BSAM", "EP", "FGE", "HMC", "IVON", "MALA", "MAMS", "MAP", "MCLMC", "MILE", "MNF", "NUTS", "PBP", "SGHMC", "SGLD",
    "SGNHT", "SMILE", "SVGD", "SWA", "SWAG", "TFB", "VBLL", "VI", "BLoB", "ConcreteDropout", "Curve",
    "EllipticalSlice", "Laplace", "MCBatchNorm", "MCDropout", "NormalizingFlow", "OnlineLaplace", "RandomWalk",
    "RepulsiveEnsemble", "Simplex", "Snapshots", "UnderdampedLangevin",
]
# fmt: on

OPTIMISED = ("single", "laplace", "ensemble", "swag", "multiswag")
VARIATIONAL_USUAL = ("mean_field", "ivon", "mc_dropout")
SAMPLED = ("sgld", "sghmc", "csghmc", "hmc")
GROUP = "torchbayes.methods"

METHODS: dict[str, MethodEntry] = {
    entry.name: entry
    for entry in (
        MethodEntry(
            "single",
            "one network, trained by maximum a posteriori",
            MAP,
            label="single network",
            usual=budgeted(MAP),
            look=Look("#6b7280", "o"),
            also=("map", "sgd", "deterministic"),
            first_of="ensemble",
            cost="One training run, one forward pass per prediction.",
        ),
        MethodEntry(
            "ensemble",
            "several networks trained from different initialisations, averaged",
            MAP,
            label="deep ensemble",
            usual=budgeted(MAP, members=5),
            plain={"members": 5},
            look=Look("#0072b2", "s"),
            also=("deepensembles",),
            by_member=True,
            cost="One training run and one forward pass for each member.",
        ),
        MethodEntry(
            "swag",
            "a Gaussian over the weights that gradient descent visits around one solution",
            SWAG,
            label="SWAG",
            usual=budgeted(SWAG),
            look=Look("#e69f00", "^"),
            also=("swagdiagonal",),
            first_of="multiswag",
            predicts="drawn",
            cost="One training run, and a forward pass for each function drawn.",
        ),
        MethodEntry(
            "multiswag",
            "SWAG around several solutions: a mixture of Gaussians, one in each basin",
            SWAG,
            label="MultiSWAG",
            usual=budgeted(SWAG, members=5),
            plain={"members": 5},
            look=Look("#d55e00", "D"),
            predicts="drawn",
            cost="One training run for each member, and a forward pass for each function drawn.",
        ),
        MethodEntry(
            "swa",
            "the average of the weights that gradient descent visits",
            SWA,
            label="SWA",
            usual=budgeted(SWA),
            look=Look("#8c6d1f", "v"),
            also=("multiswa",),
            cost="One training run, one forward pass per prediction.",
        ),
        MethodEntry(
            "curve",
            "networks along a curve of low loss between two solutions",
            Curve,
            label="curve",
            look=Look("#7b3294", "d"),
            predicts="drawn",
            cost="Three training runs, and a forward pass for each function drawn.",
        ),
        MethodEntry(
            "simplex",
            "networks in a simplex of low loss around the single network",
            Simplex,
            label="simplex",
            look=Look("#5e4fa2", "^"),
            also=("espro",),
            start="single",
            predicts="drawn",
            cost="The single network and another training run, and a forward pass for each function drawn.",
        ),
        MethodEntry(
            "laplace",
            "a Gaussian around the single network, from the curvature there",
            Laplace,
            label="Laplace",
            usual=laplace,
            look=Look("#009e73", "P"),
            start="single",
            predicts="linearised",
            cost="The single network and one more pass over the data; predictions cost Jacobians of the outputs.",
        ),
        MethodEntry(
            "multilaplace",
            "Laplace around every member of the deep ensemble: a mixture of Gaussians",
            Laplace,
            label="MultiLaplace",
            usual=laplace,
            plain={"members": 5},
            look=Look("#14606b", "d"),
            start="ensemble",
            predicts="linearised",
            cost="The deep ensemble and one more pass over the data for each member.",
        ),
        MethodEntry(
            "online_laplace",
            "Laplace while it trains: the evidence chooses the prior as it goes",
            OnlineLaplace,
            label="online Laplace",
            usual=online_laplace,
            look=Look("#4f8a10", "X"),
            predicts="linearised",
            cost="One training run with regular passes for the curvature.",
        ),
        MethodEntry(
            "ep",
            "a Gaussian over weights that outputs are linear in, by the moments of each row's likelihood",
            EP,
            label="EP",
            look=Look("#3b7a57", "8"),
            also=("expectation_propagation", "adf"),
            predicts="linearised",
            parts="linear weights",
            cost="Some passes over the data, and matrices as large as the square of the number of weights.",
            length=lambda settings: f"at most {settings.sweeps} sweeps",
        ),
        *CHAINS,
        *VARIATIONAL,
        *FLAT,
    )
}


def classes() -> dict[str, type]:
    """Return the classes of all methods of the library by their own name, optimisers first."""
    by_name: dict[str, type] = {}
    for name in ("single", "swa", "swag", *METHODS):
        kind = METHODS[name].kind
        by_name.setdefault(kind.__name__, kind)
    return by_name


def entries_of(kind: type) -> list[MethodEntry]:
    """Return the entries of a method's class."""
    return [entry for entry in METHODS.values() if entry.kind is kind]


def entry_with(kind: type, members: int) -> MethodEntry | None:
    """Return the entry of a method's class; MAP and SWAG have one for a single member and one for several."""
    entries = entries_of(kind)
    return next((entry for entry in entries if bool(entry.first_of) == (members == 1)), next(iter(entries), None))


def small(kind: type) -> dict[str, Any]:
    """Return the settings that a run of few steps needs of a method's class."""
    return next((dict(entry.small) for entry in entries_of(kind) if entry.small), {})


def parts_of(kind: type) -> str:
    """Return what a network must have for a method's class, as in its entry: "any" or some part."""
    return next((entry.parts for entry in entries_of(kind)), "any")


def label_of(name: str) -> str:
    """Return the label of a method in tables and figures."""
    return METHODS[name].label if name in METHODS else name


def entry_of(name: str, settings: Settings) -> MethodEntry:
    """Return the entry that tells how a method is fitted and how it predicts.

    It is the entry of this name, else the one for the class of the settings, else a new one.
    """
    entry = METHODS.get(name) or entry_with(type(settings), settings.members) or _new_entry(name, settings)
    if entry.start is not None and settings.needs.modes > 1:  # no entry has several modes; `fit` finds them
        return dataclasses.replace(entry, start=None)
    return entry


def _new_entry(name: str, settings: Settings) -> MethodEntry:
    start = "single" if settings.needs.start is not None else None
    return MethodEntry(name, "", type(settings), label=name, usual=lambda _: settings, start=start)


def check_method(subject: str, value: Any) -> None:
    """Check that a value, given as `subject`, is a method: frozen settings of one way to infer."""
    if isinstance(value, type):
        raise TypeError(f"{subject} must be settings, not a class; got {seen(value)}. Write {value.__name__}().")
    lacks = [name for name in ("init", "step", "members", "needs") if not hasattr(value, name)]
    if lacks or not dataclasses.is_dataclass(value):
        raise TypeError(
            f"{subject} must be the settings of a method, a dataclass with init and step such as MAP(); got "
            f"{seen(value)}."
        )


def method_named(name: str) -> Any:
    """Return the class of a method, or settings, by what a user wrote; None if there is no such name.

    `name` is that of a class of the library or of an entry point, or an import path, which may name settings. Raises
    TypeError if the path names something else.
    """
    if name in classes():
        return classes()[name]
    path = path_of(name, GROUP)
    if path is None:
        return None
    target = load_path(path)
    if isinstance(target, type):
        if dataclasses.is_dataclass(target) and hasattr(target, "init") and hasattr(target, "step"):
            return target
        raise TypeError(f"{path} must be a method, a dataclass with init and step; got {seen(target)}.")
    check_method(path, target)
    return target


def method_names() -> dict[str, str]:
    """Return the names that `fit --method` takes, with one line each."""
    listed = {name: (kind.__doc__ or "").strip().splitlines()[0] for name, kind in classes().items()}
    others = {name: f"of an installed package: {point.value}" for name, point in registered(GROUP).items()}
    return {**listed, **{name: line for name, line in others.items() if name not in listed}}
