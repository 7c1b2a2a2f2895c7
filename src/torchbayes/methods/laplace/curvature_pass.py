"""Passes over the data at fixed weights that add up the curvature there, and the posterior that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from torchbayes.checks import check_memory, free_memory, size_of
from torchbayes.curvature.collect import ROWS, Collector, Members, units
from torchbayes.curvature.discovery import LayerSupport, layer_support, network_layers
from torchbayes.curvature.exact import WithExact, is_needed
from torchbayes.curvature.kfac import KroneckerSums
from torchbayes.curvature.passes import EigenvalueSums, HessianSums, LowRankSums
from torchbayes.curvature.roots import check_curved
from torchbayes.curvature.sums import DenseSums, DiagonalSums, Sums
from torchbayes.density.density import LogDensity
from torchbayes.linalg.added import plus_precision
from torchbayes.methods.finite import clone
from torchbayes.methods.protocol import DivergedError
from torchbayes.model.batches.batch import batch_size, rows_of
from torchbayes.model.likelihoods.weighted import fixed_noise, num_values
from torchbayes.model.model import Batch, Model
from torchbayes.model.network import Buffers
from torchbayes.model.priors.bound import correlated
from torchbayes.model.priors.joint import like
from torchbayes.posteriors.laplace import LaplacePosterior
from torchbayes.posteriors.problems import note
from torchbayes.settings import check_settings

CurvatureName = Literal["auto", "ggn", "fisher", "empirical", "hessian"]
Sharing = Literal["expand", "reduce"]
DIRECTIONS = 20
"""Of "low_rank" where their number is not given."""
MOST_OUTPUTS = 1000
"""Outputs of a row up to which "auto" is exact, because each takes a backward pass."""

SUMS: dict[str, Callable[[CurvatureSettings], Sums]] = {
    "diagonal": lambda settings: DiagonalSums(),
    "kronecker": lambda settings: KroneckerSums(settings.sharing, settings.rank),
    "ekfac": lambda settings: EigenvalueSums(KroneckerSums(settings.sharing)),
    "dense": lambda settings: DenseSums(settings.chunk),
    "low_rank": lambda settings: LowRankSums(settings.directions, settings.passes),
}
"""The sums of every structure; a new one is registered by a line here."""

if TYPE_CHECKING:
    StructureName = str
else:
    StructureName = Literal[*SUMS]


@dataclass(frozen=True)
class CurvatureSettings:
    """What is added up: settings of `Laplace`, and three more."""

    structure: StructureName
    curvature: CurvatureName
    samples: int = 1
    sharing: Sharing = "expand"
    joint_bias: bool = True
    rank: int | None = None
    passes: int = 3
    chunk: int = 2**24
    check_mode: bool = True  # whether the gradient is added up too, which shows how far away the mode is
    # whether the dense matrix too, where the evidence may need it for a noise scale (`curvature.exact`)
    exact: bool = True
    most_outputs: int = MOST_OUTPUTS  # of a row, up to which "auto" is exact

    def __post_init__(self) -> None:
        check_settings(self)
        if self.curvature == "hessian" and self.structure != "dense":
            raise ValueError(
                f"the exact Hessian comes as a dense matrix alone; got structure={self.structure!r}. Use "
                f"structure='dense', or curvature='ggn'."
            )
        _ = self.sums  # checks its own settings

    @classmethod
    def of(cls, method: Any, **more: Any) -> CurvatureSettings:
        """Return the settings of a method's passes: its own of the same names, or `more` in their place."""
        names = {f.name for f in fields(cls)} & {f.name for f in fields(method)} - more.keys()
        return cls(**{name: getattr(method, name) for name in names}, **more)

    @property
    def directions(self) -> int:
        """R of a low rank."""
        return DIRECTIONS if self.rank is None else self.rank

    @property
    def sums(self) -> Sums:
        """The sums of the structure."""
        return HessianSums() if self.curvature == "hessian" else SUMS[self.structure](self)

    def kind(self, support: LayerSupport) -> str:
        """Return which curvature is added up: "auto" is exact, or sampled where a row has many outputs.

        Directions of a low rank are found by products with the exact matrix, whose number does not depend on the
        outputs.
        """
        if self.curvature != "auto":
            return self.curvature
        return "ggn" if support.outputs <= self.most_outputs or self.structure == "low_rank" else "fisher"

    def collector(self, model: Model, support: LayerSupport, *, with_exact: bool) -> Collector:
        """Return the collector that adds up the curvature, for a network whose layer support is known."""
        sums = WithExact(self.sums, DenseSums(self.chunk)) if with_exact else self.sums
        numbers = (support.numbers[block] for block in sums.held)
        rows = max(1, self.chunk // max(*numbers, support.widest))
        rows = min(rows, model.chunk_size or rows)
        joint = self.joint_bias or self.sums.correlations == "all"  # gives the same matrix, and is faster
        network = network_layers(model, support, joint_bias=joint)
        return Collector(network, sums, self.kind(support), self.samples, rows)

    def needs_exact(self, density: LogDensity, batch: Batch) -> bool:
        """Return whether the dense matrix is added up too, given the first batch of the data."""
        likelihood = density.model.likelihood
        if not self.exact or not fixed_noise(likelihood) or self.sums.correlations == "all":
            return False
        share = density.num_data / batch_size(batch.inputs, 1)
        return is_needed(density.model.layout.size, share * num_values(likelihood, rows_of(batch.targets, 0)))


@dataclass(frozen=True)
class CurvaturePass:
    """The state of the passes."""

    weights_MD: Tensor
    buffers: Buffers
    sums: Mapping[str, Tensor]  # name -> (M, ...); empty before the first batch
    log_likelihood_M: Tensor  # Σ log p(y|f) so far, float64
    gradient_MD: Tensor  # its gradient so far
    seeds: tuple[int, ...]
    step: int  # batches seen
    steps_per_epoch: int  # length of a pass
    num_targets: float  # values of the targets so far, each as often as its row counts
    layer_support: str  # `LayerSupport.text` of the network's layers; empty before the first batch


def check_held(settings: CurvatureSettings, weights_MD: Tensor) -> None:
    """Raise ValueError if the sums do not fit in memory."""
    size, device = weights_MD.shape[-1], weights_MD.device
    if settings.structure == "low_rank":
        rank = settings.directions
        check_memory(rank * weights_MD.nbytes, "directions of all members", device, rank=rank)
    if settings.structure == "dense" and (free := free_memory(device)) < weights_MD.nbytes * size:
        raise ValueError(
            f"`structure='dense'` is a matrix of {size:,} by {size:,}, which would take "
            f"{size_of(weights_MD.nbytes * size)}, and {size_of(free)} are free. Use structure='kronecker'."
        )


def _check_factors(settings: CurvatureSettings, collector: Collector, weights_MD: Tensor) -> None:
    """Raise ValueError if Kronecker factors and their eigenvectors do not fit in memory, before any is made."""
    if settings.structure not in {"kronecker", "ekfac"}:
        return
    free, layers = free_memory(weights_MD.device), len(collector.network.parts)
    needed = _taken(settings, collector, weights_MD)
    if needed <= free:
        return
    advice = "No rank of the factors of long sides fits."
    for rank in (32, 16, 8, 4, 2, 1):
        lower = replace(settings, structure="kronecker", rank=rank)
        if (least := _taken(lower, collector, weights_MD)) <= free:
            advice = f"Use structure='kronecker' with rank={rank}, which takes {size_of(least)}."
            break
    raise ValueError(
        f"`structure={settings.structure!r}` holds Kronecker factors of {layers:,} layers, and their eigenvectors, "
        f"which would take {size_of(needed)}, and {size_of(free)} are free. {advice} Or let `random` of the model name "
        f"fewer layers: {int(layers * free / needed):,} of such fit. Or use structure='diagonal'."
    )


def _taken(settings: CurvatureSettings, collector: Collector, weights_MD: Tensor) -> int:
    """Return the bytes of the sums of all members and of their eigenvectors, which EKFAC has among its sums."""
    like = weights_MD[0, : collector.network.size].to("meta")
    sums = len(weights_MD) * sum(t.nbytes for t in settings.sums.empty(collector.network, like).values())
    return 2 * sums if settings.structure == "kronecker" else sums * 3 // 2


def begin(weights_MD: Tensor, buffers: Buffers, *, seeds: Sequence[int], steps_per_epoch: int) -> CurvaturePass:
    """Return passes before their first batch."""
    none_M = weights_MD.new_zeros(len(weights_MD), dtype=torch.float64)
    gradient_MD = torch.zeros_like(weights_MD)
    copies = weights_MD.clone(), clone(buffers)
    return CurvaturePass(*copies, {}, none_M, gradient_MD, tuple(seeds), 0, steps_per_epoch, 0.0, "")


def add(
    settings: CurvatureSettings, density: LogDensity, so_far: CurvaturePass, *, batch: Batch
) -> tuple[CurvaturePass, Tensor]:
    """Return the passes with a batch added, and the mean negative log likelihood of its rows (M,), in nats.

    The tensors of `so_far` are overwritten. Raises DivergedError if the log likelihood is not finite, and ValueError
    if no row of the data counts.
    """
    now, model = so_far, density.model
    if not now.layer_support:
        first = batch.map(lambda t: t[0, : model.chunk_size])
        support = layer_support(model, now.weights_MD[0], first.inputs)
        _warn_of_columns(settings, support)
        now = replace(now, layer_support=support.text())
    with_exact = WithExact.has_exact(now.sums) if now.sums else settings.needs_exact(density, batch)
    collector = settings.collector(model, LayerSupport.parse(now.layer_support), with_exact=with_exact)
    members = Members(now.weights_MD, now.buffers, now.seeds)
    if not now.sums:
        _check_factors(settings, collector, now.weights_MD)
        now = replace(now, sums=collector.empty(members))
    position = divmod(now.step, now.steps_per_epoch)
    gradient_MD = now.gradient_MD if settings.check_mode else None
    batch_log_likelihood_M = collector.add_(
        dict(now.sums), members, batch, gradient_MD=gradient_MD, ranks=density.ranks, position=position
    )
    if not torch.isfinite(batch_log_likelihood_M).all():
        raise DivergedError(
            f"the log likelihood of batch {now.step} is not finite at the mode of member "
            f"{int((~torch.isfinite(batch_log_likelihood_M)).nonzero()[0])}. Look for extreme values in the data or "
            f"the weights, and for targets that the network says are impossible."
        )
    if position[1] == now.steps_per_epoch - 1:
        if not now.sums[ROWS].all():
            raise ValueError("no row counts: all are ignored, or have weight 0. Look at the targets and their weights.")
        collector.turn_(dict(now.sums), members, position[0])
    total_M = now.log_likelihood_M + (batch_log_likelihood_M if position[0] == 0 else 0)
    values = num_values(model.likelihood, rows_of(batch.targets, 0)) if position[0] == 0 else 0
    now = replace(now, log_likelihood_M=total_M, num_targets=now.num_targets + values, step=now.step + 1)
    return now, -batch_log_likelihood_M / batch_size(batch.inputs, 1)


def _warn_of_columns(settings: CurvatureSettings, support: LayerSupport) -> None:
    """Warn if the exact curvature was asked for and takes far longer than the sampled one."""
    if settings.curvature == "ggn" and settings.structure != "low_rank" and support.outputs > MOST_OUTPUTS:
        note(
            f"curvature='ggn' takes a backward pass of every batch for each of the {support.outputs:,} outputs of a "
            f"row; curvature='fisher', with targets drawn from the model, takes {settings.samples} in all. 'auto' "
            f"chooses that above {MOST_OUTPUTS:,} outputs."
        )


def finish(settings: CurvatureSettings, density: LogDensity, so_far: CurvaturePass) -> LaplacePosterior:
    """Return the mixture of the Gaussians at the weights, under the model's prior.

    Raises ValueError if the passes are not over, the prior has no precision at the weights, or the likelihood has no
    curvature.
    """
    steps = settings.sums.passes * so_far.steps_per_epoch
    if so_far.step < steps:
        raise ValueError(f"the pass over the data is not over: {so_far.step} of {steps} batches. Resume the run.")
    model, weights_MD = density.model, so_far.weights_MD
    reference_MD, strength_D = units(model, weights_MD)
    support = LayerSupport.parse(so_far.layer_support)
    collector = settings.collector(model, support, with_exact=WithExact.has_exact(so_far.sums))
    factor = model.scales(1, 1).likelihood
    curvature, exact = collector.curvature(so_far.sums, reference_MD), collector.exact(so_far.sums, reference_MD)
    if settings.kind(support) == "ggn":
        check_curved(model.likelihood, float(curvature.trace().min()))
    if factor != 1:
        curvature, exact = curvature.scaled(factor), exact and exact.scaled(factor)
    if correlated(model.prior) and model.prior.joint is not None:
        prior_covariance = like(model.prior.joint, weights_MD).covariance
        curvature = plus_precision(curvature, prior_covariance, model.scales(1, 1).prior)
    return LaplacePosterior(
        model,
        weights_MD.clone(),
        curvature,
        reference_MD,
        strength_D,
        so_far.log_likelihood_M,
        density.num_data,
        so_far.num_targets,
        exact=exact,
        layer_support=so_far.layer_support,
        buffers_M=dict(so_far.buffers) or None,
        statistics_known=True,
    )
