"""What settings may be, by their annotations and names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
import torch

from torchbayes.settings import NOT_NEGATIVE, check_settings


@dataclass(frozen=True)
class Settings:
    members: int = 1
    epochs: int | None = None
    burn_in: int = 0
    extra: int = field(default=5, metadata={"least": 3})
    lr: float = 0.1
    momentum: float | None = 0.9
    scale: float | tuple[float, ...] = 1.0
    tilt: float = field(default=-1.0, metadata=NOT_NEGATIVE)
    betas: tuple[float, float] = (0.9, 0.999)
    kind: Literal["plain", "fancy"] = "plain"
    prior: Literal["scalar"] | float = "scalar"
    backend: Literal["loop"] | str = "loop"
    fast: bool = False
    anything: Any = None

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(("name", "value"), [
    ("members", 3), ("epochs", 1), ("burn_in", 0), ("extra", 3), ("lr", 1e-9), ("lr", 2),
    ("momentum", None), ("momentum", 0.0),
    ("scale", 2), ("scale", (1.0, 2.0)), ("tilt", -1.0), ("tilt", 0.0), ("betas", (0.0, 0.5)), ("kind", "fancy"),
    ("prior", 0.5), ("backend", "another"), ("fast", True), ("anything", -1),
])  # fmt: skip
def test_values_within_the_range_are_taken(name, value):
    assert getattr(Settings(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value", "said"), [
    ("members", 0, "whole number of at least 1"), ("members", 2.0, "whole number"), ("members", True, "whole number"),
    ("members", None, "whole number"), ("epochs", 0, "at least 1"), ("burn_in", -1, "at least 0"),
    ("extra", 2, "at least 3"),
    ("lr", 0.0, "above 0"), ("lr", float("nan"), "above 0"), ("lr", float("inf"), "finite"), ("lr", "1", "above 0"),
    ("momentum", 1.0, "share"), ("scale", 1e-200, "1e-150"), ("scale", (), "one or more numbers"),
    ("scale", (1.0, 0.0), "above 0"),
    ("tilt", -2.0, "at least 0"), ("betas", (0.9,), "tuple of 2 numbers"), ("betas", 0.9, "tuple of 2 numbers"),
    ("betas", (0.9, 1.0), "share"), ("kind", "plane", "one of plain, fancy"), ("kind", None, "one of plain, fancy"),
    ("prior", "layer", "one of scalar"), ("prior", -1.0, "above 0"), ("fast", 1, "True or False"),
])  # fmt: skip
def test_others_are_refused_by_name(name, value, said):
    with pytest.raises(ValueError, match=f"`{name}` must .*{said}"):
        Settings(**{name: value})


def test_numbers_of_other_libraries_become_pythons():
    foreign: Any = {"members": np.int64(2), "lr": torch.tensor(0.5), "scale": np.array([1.0, 3.0])}
    made = Settings(**foreign)
    assert (type(made.members), made.members) == (int, 2)
    assert (type(made.lr), made.lr) == (float, 0.5)
    assert made.scale == (1.0, 3.0)
