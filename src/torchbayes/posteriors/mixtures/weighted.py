"""A mixture of posteriors of one network, whose members have weights of their own.

    q(w) = Σ_k Σ_m share_km q_km(w)

Every other posterior is an equal mixture of its members, and whoever uses draws counts each of them once. So weights
are numbers of draws here: of S draws, member (k, m) gives as many as make Σ |n_km − share_km S| small, within one each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from torchbayes.checks import as_seed, check_kind, check_memory, seen
from torchbayes.model.description import CONSTANTS, describe_model, fingerprint
from torchbayes.model.model import Model
from torchbayes.posteriors.functions import Functions
from torchbayes.posteriors.posterior import BUFFERS, KINDS, Beside, Posterior, readable

_SUM = 1e-6  # by which the sum of shares may differ from 1
_DRAWS = 100  # by default, where members are no chains: shares are met to a hundredth
_SAME = ("likelihood", "spread", "precision")


@readable
@dataclass(frozen=True, repr=False)
class WeightedMixture(Posterior):
    """The mixture of the members of some posteriors of one network, each with its share, such as `stack` returns.

    Draws come in turn: every beginning of them has the shares too, to within one draw of each member. It is one member
    for whoever asks, as its draws are of no equal mixture.

    Attributes:
        parts: the posteriors.
        shares: of each part the weights of its members, not negative; the sum over all is 1.
        names: a name of each weight that was sought: of parts, or of the members of one part.
    """

    parts: tuple[Posterior, ...]
    shares: tuple[tuple[float, ...], ...]
    names: tuple[str, ...] = ()

    kind = "weighted"

    def __post_init__(self) -> None:
        check_kind(Model, "a Model", model=self.model)
        check_kind(tuple, "a tuple of posteriors", parts=self.parts)
        check_kind(tuple, "a tuple with a tuple of shares for each part", shares=self.shares)
        check_kind(tuple, "a tuple of texts", names=self.names)
        for number, part in enumerate(self.parts):
            _check_part(self.model, part, f"parts[{number}]")
        _check_shares(self.parts, self.shares)

    @property
    def members(self) -> int:
        """1, as draws are in turn of members with other weights."""
        return 1

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each name."""
        each = [share for shares in self.shares for share in shares]
        sums = each if len(self.names) == len(each) else [math.fsum(shares) for shares in self.shares]
        return dict(zip(self.names, sums, strict=True))

    @property
    def default_draws(self) -> int:
        """As many as repeat no draw of a chain, at least 100."""
        lengths = [
            (part.chain_length or math.inf) / share
            for part, shares in zip(self.parts, self.shares, strict=True)
            for share in shares
            if share > 0
        ]
        least = min(lengths)
        most = sum(part.default_draws for part in self.parts)
        return _DRAWS if math.isinf(least) else max(_DRAWS, min(int(least), most))

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        """Return weights (S, D); the numbers of draws of members follow their shares.

        Raises:
            ValueError: if S is not a positive number, or the weights do not fit in memory.
        """
        draws, seed = self.check_draws(draws), as_seed(seed)
        dtype, size = self.model.network.dtype, self.model.layout.size
        check_memory(draws * size * dtype.itemsize, "the drawn weights", draws=draws)
        weights_SD = torch.empty(draws, size, dtype=dtype, device=self.model.network.device)
        for part, rows, source in self._turns(draws):
            weights_SD[rows] = part.sample(_needed(part, source), seed=seed)[source].to(weights_SD)
        return weights_SD

    def beside(self, draws: int, *, seed: int) -> Beside | None:
        """Return the buffers and masks of the draws of each part, as it gives them itself.

        Raises:
            ValueError: if some parts have masks of dropout and others have none.
        """
        if not self.model.network.buffers and all(part.beside(part.members, seed=seed) is None for part in self.parts):
            return None
        order, functions = torch.empty(draws, dtype=torch.int64), list[Functions]()
        for part, rows, source in self._turns(draws):
            order[rows] = sum(each.draws for each in functions) + torch.arange(len(rows))
            known = part if self.calibration is None else part.calibrated(self.calibration)
            functions.append(known.functions(_needed(part, source), seed=seed).some(source))
        buffers = [each.buffers_S for each in functions if each.buffers_S]
        masks = [each.masks_S for each in functions if each.masks_S]
        if (masks and len(masks) < len(functions)) or (buffers and len(buffers) < len(functions)):
            raise ValueError(
                "the parts of this mixture must all have dropout, or none of them. Predict with each alone."
            )
        buffers_S = (
            {name: torch.cat([each[name] for each in buffers])[order] for name in buffers[0]} if buffers else None
        )
        together = [mask for each in masks for mask in each]
        return Beside(buffers_S, tuple(together[s] for s in order.tolist()) if masks else None)

    def tensors(self) -> dict[str, Tensor]:
        tensors = dict[str, Tensor]()
        for number, part in enumerate(self.parts):
            buffers = {BUFFERS + name: tensor for name, tensor in (part.buffers_M or {}).items()}
            tensors |= {f"{number}.{name}": tensor for name, tensor in {**part.tensors(), **buffers}.items()}
        return tensors

    def settings(self) -> dict[str, Any]:
        parts = [
            {
                "kind": part.kind,
                "settings": part.settings(),
                "statistics_known": part.statistics_known,
                "problems": list(part.problems),
            }
            for part in self.parts
        ]
        return {"parts": parts, "shares": [list(shares) for shares in self.shares], "names": list(self.names)}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        parts = []
        for number, described in enumerate(settings["parts"]):
            tensors_of_part = {
                n.removeprefix(f"{number}."): t for n, t in tensors.items() if n.startswith(f"{number}.")
            }
            part = KINDS[described["kind"]].restore(model, tensors_of_part, described["settings"])
            buffers = {n.removeprefix(BUFFERS): t for n, t in tensors_of_part.items() if n.startswith(BUFFERS)}
            known = {"statistics_known": described["statistics_known"], "problems": tuple(described["problems"])}
            parts.append(replace(part, buffers_M=buffers or None, **known))
        return cls(model, tuple(parts), tuple(map(tuple, settings["shares"])), tuple(settings["names"]))

    def _turns(self, draws: int) -> list[tuple[Posterior, Tensor, Tensor]]:
        """Return of each part with draws the rows (n,) that are its, and which of its own draws stand there."""
        flat = [share for shares in self.shares for share in shares]
        member_S, turns, first = in_shares(flat, draws), list[tuple[Posterior, Tensor, Tensor]](), 0
        for part in self.parts:
            of_part = (member_S >= first) & (member_S < first + part.members)
            rows = of_part.nonzero().squeeze(1)
            which = member_S[rows] - first
            before = torch.nn.functional.one_hot(which, part.members).cumsum(0).gather(1, which.unsqueeze(1)) - 1
            if len(rows):
                turns.append((part, rows, before.squeeze(1) * part.members + which))
            first += part.members
        return turns


def in_shares(shares: list[float], draws: int) -> Tensor:
    """Return whose turn each draw is, int64 (S,): always that of the member furthest behind its share."""
    shares_C = torch.tensor(shares, dtype=torch.float64)
    behind_C, turns = torch.zeros_like(shares_C), []
    for _ in range(draws):
        behind_C += shares_C
        member = int(behind_C.argmax())
        behind_C[member] -= 1
        turns.append(member)
    return torch.tensor(turns, dtype=torch.int64)


def _needed(part: Posterior, source: Tensor) -> int:
    """Return how many draws a part must give for these to be among them."""
    return (int(source.max()) // part.members + 1) * part.members


def _check_part(model: Model, part: Any, name: str) -> None:
    """Raise an error unless a part is a posterior by draws, of the same network and likelihood as the model."""
    if not isinstance(part, Posterior):
        raise TypeError(f"`{name}` must be a posterior, as `fit` returns it; got {seen(part)}.")
    if part.of_linearised or part.linear:
        raise ValueError(
            f"`{name}` is a {type(part).__name__}, which predicts in closed form and not by draws of weights. Weigh "
            f"posteriors that are drawn, or combine predictions with `torchbayes.diagnostics.stacking_weights`."
        )
    if part.kind == WeightedMixture.kind:
        raise ValueError(f"`{name}` is a weighted mixture already. Give its `parts`.")
    differences = part.model.network.shapes.differences(model.network.shapes)
    ours, theirs = describe_model(model), describe_model(part.model)
    differences += [f"{key} {ours.get(key)} and {theirs.get(key)}" for key in _SAME if ours.get(key) != theirs.get(key)]
    if not differences and part.model.network is not model.network:
        held = part.buffers_M or ()
        if fingerprint(part.model.network, without=held) != fingerprint(model.network, without=held):
            differences = [f"other {CONSTANTS}, parameters and buffers that are not inferred"]
    if differences:
        raise ValueError(
            f"`{name}` must be of the network and likelihood of the others; they differ in "
            f"{'; '.join(differences[:3])}. Combine predictions of other networks with "
            f"`torchbayes.diagnostics.stacking_weights`."
        )


def _check_shares(parts: tuple[Posterior, ...], shares: tuple[tuple[float, ...], ...]) -> None:
    counts = [part.members for part in parts]
    if not parts or [len(each) if isinstance(each, tuple) else 0 for each in shares] != counts:
        raise ValueError(f"`shares` must have a weight for each of {counts} members; got {seen(shares)}.")
    flat = [share for each in shares for share in each]
    if any(not isinstance(share, float) or not share >= 0 for share in flat) or abs(math.fsum(flat) - 1) > _SUM:
        raise ValueError(f"`shares` must be numbers of at least 0 whose sum is 1; got {seen(shares)}.")
