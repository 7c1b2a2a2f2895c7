"""A figure that a notebook shows if it is the last value of a cell."""

from __future__ import annotations

from io import BytesIO

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure on an Agg canvas, without pyplot, that needs no `%matplotlib inline` to be shown."""

    def __init__(self, figsize: tuple[float, float]) -> None:
        super().__init__(figsize=figsize)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        self.savefig(stream, format="png", facecolor="white")
        return stream.getvalue()
