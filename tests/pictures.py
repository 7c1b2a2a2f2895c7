"""Pictures that are composed and not painted, for tests of what stands beside them: painting takes most of the time."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from matplotlib.figure import Figure

BLANK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)  # one pixel


def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures be saved as one pixel; pages of `tests/report` and one run of each kind paint them."""

    def save(_: Figure, stream: Any, **__: Any) -> None:
        stream.write(BLANK)

    monkeypatch.setattr(Figure, "savefig", save)


def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let comparisons compose no pictures either, where a test asks for numbers: that takes longer than the fits."""
    unpainted(monkeypatch)
    monkeypatch.setattr("torchbayes.comparison.report.pictures", lambda *_: {})
