"""Posteriors over a few coordinates of a subspace, and thereby over all weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from torchbayes.checks import check_kind, check_memory
from torchbayes.model.model import Model
from torchbayes.model.subspace import Subspace
from torchbayes.posteriors.posterior import KINDS, Posterior, readable

_INNER = "inner."


@readable
@dataclass(frozen=True, repr=False)
class InSubspace(Posterior):
    """w = lift(u), u ~ q(u): a posterior over the coordinates of a subspace, seen as one over the weights.

    Functions that need a certain kind of posterior, such as `Linearised`, `tune` and `diagnose`, take `inner`.

    Attributes:
        inner: q(u), over the coordinates; its model is `space.model`, and gives the same functions.
        space: the subspace.
    """

    inner: Posterior
    space: Subspace

    kind = "subspace"

    def __post_init__(self) -> None:
        check_kind(Subspace, "a Subspace", space=self.space)
        check_kind(Posterior, "a posterior over its coordinates", inner=self.inner)
        check_kind(Model, "a Model", model=self.model)

    @classmethod
    def of(cls, inner: Posterior, space: Subspace) -> Self:
        """Return the posterior over weights that a posterior over coordinates defines."""
        return cls(
            space.whole,
            inner,
            space,
            buffers_M=space.lifted(inner.buffers_M) if inner.buffers_M else None,
            statistics_known=inner.statistics_known,
            calibration=inner.calibration,
            problems=inner.problems,
        )

    @property
    def members(self) -> int:
        return self.inner.members

    @property
    def default_draws(self) -> int:
        return self.inner.default_draws

    def sample(self, draws: int, *, seed: int = 0) -> Tensor:
        check_memory(draws * self.model.layout.size * self.space.origin_D.itemsize, "the drawn weights", draws=draws)
        return self.space.lift(self.inner.sample(draws, seed=seed))

    def tensors(self) -> dict[str, Tensor]:
        inner = {_INNER + name: tensor for name, tensor in self.inner.tensors().items()}
        return {**inner, "origin_D": self.space.origin_D, "basis_RD": self.space.basis_RD}

    def settings(self) -> dict[str, Any]:
        scale = {} if self.space.prior_scale is None else {"prior_scale": self.space.prior_scale}
        return {"kind": self.inner.kind, "inner": self.inner.settings(), **scale}

    @classmethod
    def restore(cls, model: Model, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        space = Subspace(model, tensors["origin_D"], tensors["basis_RD"], prior_scale=settings.get("prior_scale"))
        coordinates = {name.removeprefix(_INNER): tensor for name, tensor in tensors.items() if name.startswith(_INNER)}
        return cls.of(KINDS[settings["kind"]].restore(space.model, coordinates, settings["inner"]), space)
