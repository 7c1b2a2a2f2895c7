"""What tests of figures share: how a figure is drawn, and what is read off it."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from torchbayes.report.style import house_style


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def drawn(figure: Figure) -> list[Axes]:
    """Lay the figure out, so that warnings of the layout count as errors, and give its axes; pages paint pictures."""
    house_style(figure.draw_without_rendering)()
    return figure.axes


def line(axes: Axes, index: int) -> np.ndarray:
    return np.asarray(axes.lines[index].get_data(), dtype=float)


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]
