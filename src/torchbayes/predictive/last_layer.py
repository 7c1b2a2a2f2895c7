"""The linearised predictive of a last layer as a plain module: one pass through the network, and a closed form.

With the last layer's inputs a (with a 1 appended for its bias) and weights N(W*, Σ), the outputs at a place are W*
a with covariance V_kl = aᵀ Σ_kl a, exactly. Where Σ = U diag(v) Uᵀ on the grid of the weights, U = U_R ⊗ U_C, that
is U_R diag(Σ_i v_oi (U_Cᵀ a)_i²) U_Rᵀ. Where Σ = R Rᵀ it is F Fᵀ with F_kz = Σ_i R_kiz a_i, or by strips of the
inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchbayes.curvature.features import apart, apart_of
from torchbayes.curvature.layers import sum_of
from torchbayes.linalg import Form
from torchbayes.linalg.bases import frame, spread
from torchbayes.linalg.strips import of_strips, strips
from torchbayes.linalg.structure import PlacedForm, forms
from torchbayes.model.model import Model
from torchbayes.model.network import Network, tensor_of
from torchbayes.posteriors.gaussian import Gaussian
from torchbayes.posteriors.modules.module import PredictiveModule, readable, settings_of, shared
from torchbayes.predictive.links import CENTRED, CLOSED, MARGINAL, centre_of, link_of

_INSTEAD = "Use `posterior.module(draws=30)`, which averages draws."


class Passed(nn.Module):
    """Takes the place of the last layer: returns its inputs, and records what it returned at every call."""

    gave: tuple[Tensor, ...] = ()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the inputs."""
        view = inputs.view(inputs.shape)
        self.gave = (*self.gave, view)
        return view


@readable
class LinearisedModule(PredictiveModule):
    """The closed form of a last layer, a mixture over its members: what `Linearised` predicts, in one pass."""

    kind = "linearised module"
    parts = ("shared", "head", "covariance", "learned")

    @classmethod
    def of(cls, posterior: Gaussian, *, link: str, level: float | None) -> LinearisedModule:
        """Return the module of a Gaussian posterior over a last layer, with `link` as for `Linearised`.

        It has no intervals if `level` is None. A ValueError if the link has no closed form, or other weights than
        those of one linear layer are random.
        """
        model = posterior.model
        name, layer = _random_layer(model.network)
        link = link_of(link, model.likelihood, outputs=layer.out_features)
        if link == "samples":
            raise ValueError(
                f"the link 'samples' draws functions for the rows of every call; no module does so. {_INSTEAD}"
            )
        grid_KI, random = _grid(model, name)
        full = link not in MARGINAL or link == CENTRED  # these links need the outputs together
        terms = [term for placed in forms(posterior.covariance) for term in _terms(placed, grid_KI, full=full)]
        tensors = shared(model.network.module, random)
        fixed = {"bias_K": tensors.pop(f"{name}bias")} if f"{name}bias" in tensors else {}
        parts = {
            "shared": tensors,
            "head": {"weight_MKI": posterior.mean_MD[:, grid_KI].clone(), **fixed},
            "covariance": {f"{n}.{key}": t for n, term in enumerate(terms) for key, t in term.items()},
            "learned": {n: p.clone() for n, p in model.split(posterior.mean_MD)[1].items()},
        }
        return cls(model, parts, {"link": link, "layer": name, **settings_of(model.likelihood, level=level)})

    def prepared(self, network: nn.Module) -> nn.Module:
        """Return the network without its last layer."""
        *path, last = self._settings["layer"].split(".")[:-1] or [""]
        if not last:
            return Passed()
        network.get_submodule(".".join(path)).add_module(last, Passed())
        return network

    def forward(self, inputs: Any) -> dict[str, Tensor]:
        """Return the average at inputs and its uncertainty, by name.

        A tuple becomes positional arguments of the network, a mapping keyword arguments. A ValueError if the
        network changes the outputs of its last layer, or uses it more than once.
        """
        features, head, link = self._seen(inputs), self.part("head"), self._settings["link"]
        weight_MKI = head["weight_MKI"]
        rows_PI = features.reshape(-1, features.shape[-1])
        rows_PI = F.pad(rows_PI, (0, weight_MKI.shape[-1] - rows_PI.shape[-1]), value=1.0)
        mean_MPK = rows_PI @ weight_MKI.mT + head.get("bias_K", 0.0)
        centre = centre_of(link)
        middle = None if centre is None else centre(mean_MPK)
        spread = self._covariance(rows_PI, full=link not in MARGINAL, centre_MPK=middle)
        mean, spread = (t.unflatten(1, features.shape[:-1]) if features.ndim > 2 else t for t in (mean_MPK, spread))
        return self.summed_up(mean, spread) if link == "gaussian" else self.summed_up(CLOSED[link](mean, spread))

    def _seen(self, inputs: Any) -> Tensor:
        """Return the inputs of the last layer, (B, ..., I); a ValueError as for a call."""
        state = self.part("shared")
        passed: Any = self._network.module.get_submodule(self._settings["layer"].removesuffix("."))
        self._network.ask(state, inputs, device=self.part("head")["weight_MKI"].device)
        passed.gave = ()
        outputs = tensor_of(self._network.run(state, inputs))
        passed_on, passed.gave = passed.gave, ()
        if not torch.compiler.is_dynamo_compiling() and (len(passed_on) != 1 or outputs is not passed_on[0]):
            raise ValueError(
                f"the network must return what `{self._settings['layer']}weight` gives, at its only call; it gives "
                f"something else. {_INSTEAD}"
            )
        return outputs

    def _covariance(self, rows_PI: Tensor, *, full: bool, centre_MPK: Tensor | None) -> Tensor:
        """Return V of every place, (M, P, K, K), or its diagonal; of the outputs less their mean for a centre."""
        terms: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, tensor in self.part("covariance").items():
            number, _, key = name.partition(".")
            terms[number][key] = tensor
        return sum_of([_of_term(rows_PI, term, full, centre_MPK) for term in terms.values()])


def _of_term(rows_PI: Tensor, term: Mapping[str, Tensor], full: bool, centre_MPK: Tensor | None) -> Tensor:
    if "variance_MKI" in term:
        return _of_grid(rows_PI, term, full, centre_MPK)
    if "strips_MJWQ" in term:
        spread = of_strips(rows_PI, **term)
        return spread if centre_MPK is None else apart(spread, centre_MPK)
    return _of_root(rows_PI, term, full, centre_MPK)


def _of_grid(rows_PI: Tensor, term: Mapping[str, Tensor], full: bool, centre_MPK: Tensor | None) -> Tensor:
    columns, rows = term.get("columns_MII"), term.get("rows_MKK")
    turned = rows_PI if columns is None else rows_PI @ columns
    spread = turned.square() @ term["variance_MKI"].mT
    if centre_MPK is not None:
        return apart_of(spread, rows, centre_MPK)
    if rows is None:
        return torch.diag_embed(spread) if full else spread
    if not full:
        return spread @ rows.square().mT
    pairs_MKQ = (rows.mT.unsqueeze(-1) * rows.mT.unsqueeze(-2)).flatten(-2)  # one product for all rows
    return (spread @ pairs_MKQ).unflatten(-1, 2 * (rows.shape[1],))


def _of_root(rows_PI: Tensor, term: Mapping[str, Tensor], full: bool, centre_MPK: Tensor | None) -> Tensor:
    ((name, root_MKIZ),) = term.items()
    projected = torch.einsum("pi,mkiz->mpkz", rows_PI, root_MKIZ)
    if centre_MPK is not None:
        projected = projected - centre_MPK.unsqueeze(-2) @ projected
    gram = projected @ projected.mT if full else projected.square().sum(-1)
    return gram if name == "plus_MKIZ" else -gram


def _terms(placed: PlacedForm, grid_KI: Tensor, *, full: bool) -> Iterator[dict[str, Tensor]]:
    """Yield the terms of one block of Σ on the grid of the layer's weights, name -> tensor.

    If not `full`, only those within outputs.
    """
    where, form = placed
    position = where.new_full((int(torch.cat([where, grid_KI.flatten()]).max()) + 1,), -1)
    position[grid_KI.flatten()] = torch.arange(grid_KI.numel(), device=position.device)
    position = position[where]
    inside = position >= 0  # other weights are the likelihood's, on which the outputs do not depend
    if not inside.any():
        return

    def on_grid(values_MnZ: Tensor) -> Tensor:
        on_layer = values_MnZ.new_zeros(len(values_MnZ), grid_KI.numel(), values_MnZ.shape[-1])
        on_layer[:, position[inside]] = values_MnZ[:, inside]
        return on_layer.unflatten(1, grid_KI.shape)

    if form.variance is not None:
        flat = form.variance.ndim == 2
        yield (
            {"variance_MKI": on_grid(form.variance.unsqueeze(-1))[..., 0]}
            if flat
            else _on_layer(form, position, grid_KI)
        )
    if form.root_MDZ is not None:
        root_MKIZ = on_grid(form.root_MDZ)
        yield strips(root_MKIZ) if full else {"plus_MKIZ": torch.linalg.qr(root_MKIZ.mT).R.mT.contiguous()}
    if form.directions_MRD is not None:
        shares = 1.0 if form.shares_MR is None else form.shares_MR.sqrt().unsqueeze(-1)
        directions_MKIR = on_grid((form.directions_MRD * shares).mT)
        yield {"plus_MKIZ" if form.sign > 0 else "minus_MKIZ": directions_MKIR}


def _on_layer(form: Form, at: Tensor, grid_KI: Tensor) -> dict[str, Tensor]:
    """Return variances over the layer, or over its weights or its biases alone, with their bases."""
    assert form.variance is not None
    variance_MKn, size = spread(form.variance, form.rows_MGOO, form.columns_MGII)[:, 0], grid_KI.shape[1]
    columns = (at % size).view(form.shape[1:])[0]
    tensors = {"variance_MKI": variance_MKn.clone()}
    if form.rows_MGOO is not None:
        tensors["rows_MKK"] = frame(form.rows_MGOO[:, 0]).clone()
    if form.columns_MGII is not None or len(columns) < size:
        identity = torch.eye(len(columns), dtype=variance_MKn.dtype, device=variance_MKn.device)
        basis = identity if form.columns_MGII is None else frame(form.columns_MGII[:, 0])
        tensors["columns_MII"] = basis.new_zeros(len(variance_MKn), size, basis.shape[-1])
        tensors["columns_MII"][:, columns] = basis
    return tensors


def _random_layer(network: Network) -> tuple[str, nn.Linear]:
    """Return the only linear layer with random weights, after its name and a dot; a ValueError if there is none."""
    names = network.layout.names
    name = names[0].removesuffix("weight")
    layers = {
        f"{n}." if n else "": m
        for n, m in network.module.named_modules()
        if isinstance(m, nn.Linear) and type(m).forward is nn.Linear.forward
    }
    layer = layers.get(name)
    alone = {f"{name}weight"} <= {*names} <= {f"{name}weight", f"{name}bias"} and not network.mask.indices
    weight = None if layer is None else layer.weight
    uses = sum(p is weight for m in network.module.modules() for p in m._parameters.values() if p is not None)
    if layer is None or not alone or uses != 1 or layer._forward_hooks or layer._forward_pre_hooks:
        raise ValueError(
            f"a closed form is written for the weights of one linear layer, the last one; random are {names[0]}"
            f"{f' and {len(names) - 1} more' if len(names) > 1 else ''}. {_INSTEAD}"
        )
    return name, layer


def _grid(model: Model, name: str) -> tuple[Tensor, list[str]]:
    """Return the positions in the flat vector of the layer's weights, with its biases last, and their names."""
    layout, names = model.layout, [n for n in model.network.layout.names if n.startswith(name)]
    places = torch.arange(layout.size, device=model.network.device)
    weight_KI = layout.split(places)[f"{name}weight"]
    biases = [layout.split(places)[n].unsqueeze(1) for n in names if n != f"{name}weight"]
    return torch.cat([weight_KI, *biases], dim=1), names
