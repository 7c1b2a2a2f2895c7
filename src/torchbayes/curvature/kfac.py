"""KFAC: Kronecker factors of the curvature of each layer, from second moments of inputs and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchbayes.curvature.discovery import CaptureScope, NetworkLayers
from torchbayes.curvature.layers import Affine, Call, Lookup
from torchbayes.curvature.sums import OnePass, Piece, Sum
from torchbayes.linalg import BlockCurvature, DenseCurvature, DiagonalCurvature, KroneckerCurvature
from torchbayes.linalg.matrices import add_gram_, eigh

_WAITING = 2**13  # rows and places collected for one matrix product, at most


@dataclass(frozen=True)
class KroneckerSums(OnePass):
    """KFAC: for each affine layer A = Σ a aᵀ and G = Σ g gᵀ with H ≈ G ⊗ A / count; others have blocks of their own.

    With T places the two ways of Eschenhagen et al. (2023) are

        expand  H ≈ (Σ_n Σ_t Σ_r g gᵀ) ⊗ (Σ_n Σ_t a aᵀ) / (N T)
        reduce  H ≈ (Σ_n Σ_r ĝ ĝᵀ) ⊗ (Σ_n ā āᵀ) / N,   ĝ = Σ_t g,  ā = mean_t a

    and without sharing both are Martens and Grosse (2015). An embedding sees one-hot inputs, so that its A is diagonal;
    it is always expanded. Each other layer has a dense block if it has at most `largest` weights, else a diagonal. T
    and the means are over the places that are used (`UsedPlaces`): padding with ignored targets changes nothing. A row
    counts as often as its most heavily weighted place. So A takes the class weights of places as those of rows, and if
    some places count more than others G and A weight them differently.
    """

    sharing: str = "expand"  # "expand" or "reduce"
    largest: int = 1024  # weights of the largest dense block

    held: ClassVar[tuple[CaptureScope, ...]] = ("in turn",)

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        total: Sum = {}
        for number, layer in enumerate(network.parts):
            size = layer.index.numel()
            if isinstance(layer, Affine):
                groups, outputs, inputs = layer.index.shape
                shapes = {"inputs": (groups, inputs, inputs), "outputs": (groups, outputs, outputs)}
            elif isinstance(layer, Lookup):
                _, entries, outputs = layer.index.shape
                shapes = {"inputs": (entries,), "outputs": (1, outputs, outputs)}
            else:
                shapes = {"dense": (size, size)} if size <= self.largest else {"diagonal": (size,)}
            total |= {f"{number}.{name}": like.new_zeros(shape) for name, shape in shapes.items()}
            if "inputs" in shapes:
                total[f"{number}.count"] = torch.zeros(1, dtype=torch.float64, device=like.device)
        return total

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        affine = {layer.module: layer for layer in piece.network.layers if isinstance(layer, Affine)}
        others = [(n, layer) for n, layer in enumerate(piece.network.parts) if not isinstance(layer, Affine)]
        moments = {module: Moment() for module in affine}  # weights and biases of a layer share them
        used = UsedPlaces.of(piece, affine)
        for column, calls in piece.columns():
            for module, layer in affine.items():
                moments[module].add(self._gradients(layer, calls[module]))
            for layer_number, layer in others:
                if isinstance(layer, Lookup):
                    for call in calls[layer.module]:
                        gradient = layer.weighted(call.inputs, call.outputs)[1].flatten(0, -2)
                        add_gram_(total[f"{layer_number}.outputs"], gradient)
                    continue
                is_whole = layer is piece.network.whole
                jacobian = piece.rest(column) if is_whole else layer.rows(calls[layer.module]).flatten(1)
                if f"{layer_number}.dense" in total:
                    add_gram_(total[f"{layer_number}.dense"], jacobian)
                else:
                    total[f"{layer_number}.diagonal"] += jacobian.square().sum(0)
        for layer_number, layer in enumerate(piece.network.parts):
            if isinstance(layer, Affine):
                total[f"{layer_number}.outputs"] += moments[layer.module].total()
        self._add_inputs(total, piece, used)

    def _add_inputs(self, total: Sum, piece: Piece, used: UsedPlaces) -> None:
        """Add the inputs to A, each row weighted, and only at the places that are used."""
        weights_B, rows = piece.row_weights, len(piece.seen.outputs)
        for layer_number, layer in enumerate(piece.network.parts):
            if isinstance(layer, Affine):
                calls = piece.seen.calls[layer.module]
                call_inputs = [layer.inputs(call.inputs, ones=weights_B is not None) for call in calls]
                inputs = _joined(call_inputs, dim=2)
                if weights_B is None:
                    inputs = inputs if self.sharing == "expand" else inputs.mean(2, keepdim=True)
                    repeats = rows if inputs.shape[0] == 1 and rows > 1 else 1
                    total[f"{layer_number}.inputs"] += _second_moment(inputs, ones=layer.joint) * repeats
                    total[f"{layer_number}.count"] += rows * inputs.shape[2]
                    continue
                counts = [used.times(weights_B, layer.module, n, places=a.shape[2]) for n, a in enumerate(call_inputs)]
                weights_BT = _joined(
                    [w.expand(-1, a.shape[2]) for w, a in zip(counts, call_inputs, strict=True)], dim=1
                )
                if self.sharing == "reduce":  # the mean over the places that are used
                    sums_B1 = weights_BT.sum(1, keepdim=True)
                    shares_BT = weights_BT / torch.where(sums_B1 == 0, 1.0, sums_B1)
                    inputs = (inputs * shares_BT[:, None, :, None]).sum(2, keepdim=True)
                    weights_BT = weights_B.unsqueeze(1) * (sums_B1 > 0)
                total[f"{layer_number}.inputs"] += _second_moment(inputs * weights_BT.sqrt()[:, None, :, None])
                total[f"{layer_number}.count"] += weights_BT.sum(dtype=torch.float64)
            elif isinstance(layer, Lookup):
                for number, call in enumerate(piece.seen.calls[layer.module]):
                    used_entries = call.inputs != layer.padding
                    counts = None
                    if weights_B is not None:
                        places = call.inputs[0].numel()
                        weights_BT = used.times(weights_B, layer.module, number, places=places)
                        counts = weights_BT.expand(-1, places).reshape(call.inputs.shape)[used_entries]
                    entries = call.inputs[used_entries].bincount(counts, minlength=layer.index.shape[1])
                    total[f"{layer_number}.inputs"] += entries
                    total[f"{layer_number}.count"] += entries.sum(dtype=torch.float64)

    def _gradients(self, layer: Affine, calls: Sequence[Call]) -> Tensor:
        """Return the gradients that enter G, (B, G, T, O)."""
        together = _joined([layer.gradients(call.outputs) for call in calls], dim=2)
        return together if self.sharing == "expand" else together.sum(2, keepdim=True)

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> BlockCurvature:
        blocks = (self.block(network, n, totals_M, scale_MD=scale_MD) for n in range(len(network.parts)))
        return BlockCurvature(network.order, tuple(blocks))

    def block(self, network: NetworkLayers, number: int, totals_M: Sum, *, scale_MD: Tensor) -> Any:
        """Return the block of one part of the network."""
        layer = network.parts[number]
        scale = scale_MD[:, layer.index.flatten()]
        if f"{number}.dense" in totals_M:
            return DenseCurvature(totals_M[f"{number}.dense"] * scale.unsqueeze(-1) * scale.unsqueeze(-2))
        if f"{number}.diagonal" in totals_M:
            return DiagonalCurvature(totals_M[f"{number}.diagonal"] * scale**2)
        inputs, outputs = totals_M[f"{number}.inputs"], totals_M[f"{number}.outputs"]
        count = totals_M[f"{number}.count"].to(inputs)  # exact until here, whatever the dtype
        if isinstance(layer, Lookup):
            column = _along_columns(scale.unflatten(1, layer.index.shape).mT, layer)[:, 0]
            values, vectors = eigh(outputs)
            grid = (inputs * column**2 / count)[:, None, :, None] * values.clamp_min(0).unsqueeze(-2)
            return KroneckerCurvature(grid, None, vectors)
        column = _along_columns(scale.unflatten(1, layer.index.shape), layer)
        factors = [inputs * column.unsqueeze(-1) * column.unsqueeze(-2) / count[..., None, None], outputs]
        (values_in, columns), (values_out, rows) = (eigh(factor) for factor in factors)
        return KroneckerCurvature(
            values_out.clamp_min(0).unsqueeze(-1) * values_in.clamp_min(0).unsqueeze(-2), rows, columns
        )


@dataclass(frozen=True)
class UsedPlaces:
    """The places of a row at which a layer is used: those on which the row's counted targets depend.

    A place on which only targets that do not count depend adds nothing to G, so it must be left out of the means in A
    and of the count. Two gradients show on which targets a place depends: those of numbers made of the outputs at the
    places that count, and at those that do not. A place may have neither gradient, for example if its units are off. If
    there are as many targets as places, it is then taken to belong to the target with its number; else it is left out
    in rows in which a target does not count, although counted targets could depend on it.
    """

    ignored_BT: Tensor | None  # which targets do not count; None if all do
    # for each call of a layer, whether counted targets depend on a place, and others, bool (B, T) each
    depends: Mapping[tuple[str, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, piece: Piece, affine: Mapping[str, Affine]) -> UsedPlaces:
        """Return the used places of some rows, before their graph is freed."""
        weights = piece.place_weights
        if weights is None or bool(weights.all()):
            return cls(None)
        ignored = weights == 0
        outputs = piece.seen.outputs
        # coefficients without symmetry, so that no contributions cancel
        mixed_K = torch.arange(1, outputs.shape[-1] + 1, device=outputs.device).cos().to(outputs)
        roots = [where.unsqueeze(-1) * mixed_K.expand_as(outputs) for where in (~ignored, ignored)]
        moved: dict[tuple[str, int], list[Tensor]] = {}
        for calls in piece.seen.columns(roots, last=False):
            for module, calls_of_module in calls.items():
                for number, call in enumerate(calls_of_module):
                    moved.setdefault((module, number), []).append(_moved(call.outputs, affine.get(module)))
        return cls(ignored.flatten(1), {call: (counted, uncounted) for call, (counted, uncounted) in moved.items()})

    def times(self, weights_B: Tensor, module: str, number: int, *, places: int) -> Tensor:
        """Return how often each place of a call counts, (B, T), or (B, 1) if all places count as their row."""
        if self.ignored_BT is None:
            return weights_B.unsqueeze(1)
        counted_BT, other_BT = self.depends[module, number]
        if counted_BT.shape[1] != places:  # a bias alone has one place
            return weights_B.unsqueeze(1)
        alike = self.ignored_BT.shape[1] == places
        idle = other_BT | (self.ignored_BT if alike else self.ignored_BT.any(1, keepdim=True))
        return weights_B.unsqueeze(1) * (counted_BT | ~idle)


def _moved(gradient: Tensor, layer: Affine | None) -> Tensor:
    """Return at which places of a call a gradient is not zero, bool (B, T)."""
    if layer is not None:
        return (layer.gradients(gradient) != 0).any(-1).any(1)
    return (gradient != 0).any(-1).view(len(gradient), -1)


def _joined(tensors: Sequence[Tensor], *, dim: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=dim)


@dataclass
class Moment:
    """A second moment, accumulated in blocks: one large product is faster than many small ones."""

    waiting: list[Tensor] = field(default_factory=list)  # tensors (B, G, T, O) that are not in the sum yet
    summed: Tensor | float = 0.0  # sum over the other tensors, (G, O, O); 0 if there are none

    def add(self, tensor: Tensor) -> None:
        """Add a tensor."""
        self.waiting.append(tensor)
        if sum(len(block) * block.shape[2] for block in self.waiting) > _WAITING:
            self.total()

    def total(self) -> Tensor | float:
        """Return the sum so far."""
        if self.waiting:
            self.summed = self.summed + _second_moment(_joined(self.waiting, dim=0))
            self.waiting = []
        return self.summed


def _second_moment(tensor: Tensor, *, ones: bool = False) -> Tensor:
    """Return Σ over rows and places of the outer products, (G, I, I) from (B, G, T, I), with or without a last 1."""
    flat = tensor.transpose(0, 1).flatten(1, 2)
    groups, count, size = flat.shape
    total = flat.new_zeros(groups, size + ones, size + ones)
    add_gram_(total[:, :size, :size], flat)
    if ones:
        total[:, -1, :size] = total[:, :size, -1] = flat.sum(1)
        total[:, -1, -1] = count
    return total


def _along_columns(scale: Tensor, layer: Any) -> Tensor:
    """Return the scale of each column, (M, G, I), of scales (M, G, O, I); ValueError if it varies down a column."""
    first = scale[:, :, :1]
    if not torch.allclose(scale, first.expand_as(scale), rtol=1e-6, atol=0):
        raise ValueError(
            f"a Kronecker-factored posterior needs the same prior precision for all weights of a layer, biases apart; "
            f"those of `{layer.module}` differ. Use a normal prior per layer, or structure='diagonal' or 'dense'."
        )
    return first.squeeze(2)
