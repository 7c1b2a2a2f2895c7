"""KFAC: Kronecker factors of the curvature of each layer, from second moments of inputs and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchbayes.curvature.discovery import CaptureScope, NetworkLayers
from torchbayes.curvature.factors import Moment, Spectra, joined, long_sides, second_moment
from torchbayes.curvature.layers import Affine, Call, Lookup
from torchbayes.curvature.sums import OnePass, Piece, Sum
from torchbayes.linalg import BlockCurvature, DenseCurvature, DiagonalCurvature, KroneckerCurvature
from torchbayes.linalg.matrices import add_gram_, eigh
from torchbayes.linalg.sketch import directions
from torchbayes.randomness.seeds import Purpose, generator


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

    A and G of long sides (`factors.long_sides`) are summed as sketches: products with ℓ = 2 k + 10 directions, and the
    diagonal. Their k largest eigenvectors are kept, and the lost trace is spread evenly over all other directions. That
    is exact if the rank of what is seen is at most k. Else the curvature has the right trace, and log det (H + d I) is
    too large, because equal eigenvalues have the largest product. Memory O(n k), and time O(n k) per row and place for
    a side of n, where whole factors take O(n²). Yang et al. (2024) keep those of adapters at low rank by incremental
    singular values, which lose the trace of the others.
    """

    sharing: str = "expand"  # "expand" or "reduce"
    rank: int | None = 0  # of long sides, as for `long_sides`
    largest: int = 1024  # weights of the largest dense block

    held: ClassVar[tuple[CaptureScope, ...]] = ("in turn",)

    def empty(self, network: NetworkLayers, like: Tensor, seed: int = 0) -> Sum:
        total: Sum = {}
        long = long_sides(network, self.rank)
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
            for name, shape in shapes.items():
                key, held = f"{number}.{name}", shape
                if key in long:
                    at = _directions(shape[-1])
                    if at not in total:
                        total[at] = _drawn(shape[-1], long[key], like)
                    held = (*shape[:-1], total[at].shape[-1] + 1)
                total[key] = like.new_zeros(held)  # never the whole of a long side, which may not fit
            if "inputs" in shapes:
                total[f"{number}.count"] = torch.zeros(1, dtype=torch.float64, device=like.device)
        return total

    def add_(self, total: Sum, piece: Piece, number: int = 0) -> None:
        affine = {layer.module: layer for layer in piece.network.layers if isinstance(layer, Affine)}
        others = [(n, layer) for n, layer in enumerate(piece.network.parts) if not isinstance(layer, Affine)]
        omegas = self._omegas(total, piece.network)
        # weights and biases of a layer share them, unless one alone is kept at low rank
        moments: dict[tuple[str, bool], Moment] = {}
        for layer_number, layer in enumerate(piece.network.parts):
            if isinstance(layer, Affine):
                omega = omegas.get(f"{layer_number}.outputs")
                moments.setdefault((layer.module, omega is None), Moment(omega))
        used = UsedPlaces.of(piece, affine)
        for column, calls in piece.columns():
            for (module, _), moment in moments.items():
                moment.add(self._gradients(affine[module], calls[module]))
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
                key = f"{layer_number}.outputs"
                total[key] += moments[layer.module, key not in omegas].total()
        self._add_inputs(total, piece, used, omegas)

    def _omegas(self, total: Sum, network: NetworkLayers) -> dict[str, Tensor]:
        """Return the directions of every sketch in the sums, by its name."""
        return {key: total[_directions(total[key].shape[-2])] for key in long_sides(network, self.rank)}

    def _add_inputs(self, total: Sum, piece: Piece, used: UsedPlaces, omegas: Mapping[str, Tensor]) -> None:
        """Add the inputs to A, each row weighted, and only at the places that are used.

        Layers that were given the same tensors, as adapters of queries, keys and values are, share the work.
        """
        weights_B = piece.row_weights
        for numbers in _alike(piece, omegas).values():
            moment, last = None, None
            for number in numbers:
                layer, omega, counts = piece.network.parts[number], omegas.get(f"{number}.inputs"), None
                ones = weights_B is not None or omega is not None
                inputs = [layer.inputs(call.inputs, ones=ones) for call in piece.seen.calls[layer.module]]
                if weights_B is not None:
                    counts = [used.times(weights_B, layer.module, n, places=a.shape[2]) for n, a in enumerate(inputs)]
                if moment is None or not _equal(counts, last):
                    moment = self._moment(piece, inputs, counts, ones=layer.joint and not ones, omega=omega)
                total[f"{number}.inputs"] += moment[0]
                total[f"{number}.count"] += moment[1]
                last = counts
        for number, layer in enumerate(piece.network.parts):
            if isinstance(layer, Lookup):
                self._add_entries(total, piece, used, number=number)

    def _add_entries(self, total: Sum, piece: Piece, used: UsedPlaces, *, number: int) -> None:
        """Add how often an embedding takes each of its entries."""
        layer, weights_B = piece.network.parts[number], piece.row_weights
        for call_number, call in enumerate(piece.seen.calls[layer.module]):
            used_entries = call.inputs != layer.padding
            counts = None
            if weights_B is not None:
                places = call.inputs[0].numel()
                weights_BT = used.times(weights_B, layer.module, call_number, places=places)
                counts = weights_BT.expand(-1, places).reshape(call.inputs.shape)[used_entries]
            entries = call.inputs[used_entries].bincount(counts, minlength=layer.index.shape[1])
            total[f"{number}.inputs"] += entries
            total[f"{number}.count"] += entries.sum(dtype=torch.float64)

    def _moment(
        self,
        piece: Piece,
        call_inputs: Sequence[Tensor],
        counts: list[Tensor] | None,
        *,
        ones: bool,
        omega: Tensor | None,
    ) -> tuple[Tensor, Any]:
        """Return Σ a aᵀ of the inputs of every call, each place counted as often as `counts` say, and the sum of these.

        `ones` stands for a last input of 1 that they do not hold.
        """
        inputs, rows = joined(call_inputs, dim=2), len(piece.seen.outputs)
        if counts is None:
            inputs = inputs if self.sharing == "expand" else inputs.mean(2, keepdim=True)
            repeats = rows if inputs.shape[0] == 1 and rows > 1 else 1
            return second_moment(inputs, ones=ones, omega=omega) * repeats, rows * inputs.shape[2]
        weights_BT = joined([w.expand(-1, a.shape[2]) for w, a in zip(counts, call_inputs, strict=True)], dim=1)
        if self.sharing == "reduce":  # the mean over the places that are used
            sums_B1 = weights_BT.sum(1, keepdim=True)
            shares_BT = weights_BT / torch.where(sums_B1 == 0, 1.0, sums_B1)
            inputs = (inputs * shares_BT[:, None, :, None]).sum(2, keepdim=True)
            assert piece.row_weights is not None
            weights_BT = piece.row_weights.unsqueeze(1) * (sums_B1 > 0)
        weighted = inputs * weights_BT.sqrt()[:, None, :, None]
        return second_moment(weighted, omega=omega), weights_BT.sum(dtype=torch.float64)

    def _gradients(self, layer: Affine, calls: Sequence[Call]) -> Tensor:
        """Return the gradients that enter G, (B, G, T, O)."""
        together = joined([layer.gradients(call.outputs) for call in calls], dim=2)
        return together if self.sharing == "expand" else together.sum(2, keepdim=True)

    def curvature(self, network: NetworkLayers, totals_M: Sum, scale_MD: Tensor) -> BlockCurvature:
        spectra, long = Spectra(), long_sides(network, self.rank)
        blocks = (
            self.block(network, n, totals_M, scale_MD=scale_MD, spectra=spectra, long=long)
            for n in range(len(network.parts))
        )
        return BlockCurvature(network.order, tuple(blocks))

    def block(
        self,
        network: NetworkLayers,
        number: int,
        totals_M: Sum,
        *,
        scale_MD: Tensor,
        spectra: Spectra | None = None,
        long: Mapping[str, int] | None = None,
    ) -> Any:
        """Return the block of one part of the network; `spectra` are those of other blocks."""
        layer, spectra, long = network.parts[number], spectra or Spectra(), long or {}
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
        decompositions = []
        for name, factor, own_scale in (("inputs", inputs, column), ("outputs", outputs, None)):
            rank = long.get(f"{number}.{name}", 0)
            omega = totals_M[_directions(factor.shape[-2])] if rank else None
            decompositions.append(spectra.of(factor, omega, rank, scale=own_scale))
        (values_in, columns), (values_out, rows) = decompositions
        grid = values_out.unsqueeze(-1) * (values_in / count[..., None]).unsqueeze(-2)
        return KroneckerCurvature(grid, rows, columns)


def _directions(size: int) -> str:
    """Return the name of the directions of sketches of a side of this length."""
    return f"directions.{size}"


def _drawn(size: int, rank: int, like: Tensor) -> Tensor:
    return directions(size, rank, generator=generator(Purpose.SKETCH, size), like=like)


def _alike(piece: Piece, omegas: Mapping[str, Tensor]) -> dict[Any, list[int]]:
    """Return the numbers of affine layers, those together that were given the same tensors and sum them in one form."""
    together: dict[Any, list[int]] = {}
    for number, layer in enumerate(piece.network.parts):
        if isinstance(layer, Affine):
            tensors = [call.inputs for call in piece.seen.calls[layer.module]]
            given = [(tensor.data_ptr() or id(tensor), tensor.stride(), tensor.shape) for tensor in tensors]
            key = (layer.weight, layer.joint, f"{number}.inputs" in omegas, *given)
            # what a convolution sees depends on its kernel too
            together.setdefault(layer if isinstance(layer.part, nn.Conv1d | nn.Conv2d) else key, []).append(number)
    return together


def _equal(first: list[Tensor] | None, second: list[Tensor] | None) -> bool:
    """Return whether two lists of tensors are equal."""
    if first is None or second is None:
        return first is second
    return len(first) == len(second) and all(map(torch.equal, first, second))


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


def _along_columns(scale: Tensor, layer: Any) -> Tensor:
    """Return the scale of each column, (M, G, I), of scales (M, G, O, I); ValueError if it varies down a column."""
    first = scale[:, :, :1]
    if not torch.allclose(scale, first.expand_as(scale), rtol=1e-6, atol=0):
        raise ValueError(
            f"a Kronecker-factored posterior needs the same prior precision for all weights of a layer, biases apart; "
            f"those of `{layer.module}` differ. Use a normal prior per layer, or structure='diagonal' or 'dense'."
        )
    return first.squeeze(2)
