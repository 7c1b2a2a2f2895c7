"""What every covariance structure offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from torch import Tensor


class Structure(Protocol):
    """A symmetric positive matrix per member, known through its operations.

    Attributes:
        kind: name under which it is saved.
    """

    kind: ClassVar[str]

    @property
    def size(self) -> int:
        """D, the number of weights."""
        ...

    @property
    def noise_size(self) -> int:
        """Number of standard normals that `sqrt_matvec` turns into one sample."""
        ...

    def matvec(self, vector_MD: Tensor) -> Tensor:
        """Return Σ x."""
        ...

    def solve(self, vector_MD: Tensor) -> Tensor:
        """Return Σ⁻¹ x."""
        ...

    def quadratic(self, vector_MD: Tensor) -> Tensor:
        """Return xᵀ Σ⁻¹ x as a sum of squares, float64: in x · (Σ⁻¹ x) large terms would cancel."""
        ...

    def sqrt_matvec(self, noise_MZ: Tensor) -> Tensor:
        """Return R z with R Rᵀ = Σ."""
        ...

    def logdet(self) -> Tensor:
        """Return log det Σ, float64."""
        ...

    def diagonal(self) -> Tensor:
        """Return diag Σ."""
        ...

    def dense(self) -> Tensor:
        """Return Σ as matrices."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that define the structure, by field name; `NUMBER.KIND.FIELD` for those of its parts."""
        ...


def nested(parts: tuple[Any, ...]) -> dict[str, Tensor]:
    """Return the tensors of several structures under names that tell number and kind."""
    return {
        f"{number}.{part.kind}.{field}": tensor
        for number, part in enumerate(parts)
        for field, tensor in part.tensors().items()
    }


def unnested(tensors: dict[str, Tensor], restore: Callable[[str, dict[str, Tensor]], Any]) -> tuple[Any, Any]:
    """Return a structure's own tensors, and its parts rebuilt from what `nested` gave."""
    own = {name: tensor for name, tensor in tensors.items() if "." not in name}
    grouped: dict[int, tuple[str, dict[str, Tensor]]] = {}
    for name in tensors.keys() - own.keys():
        number, kind, field = name.split(".", 2)
        grouped.setdefault(int(number), (kind, {}))[1][field] = tensors[name]
    return own, tuple(restore(*grouped[number]) for number in sorted(grouped))
