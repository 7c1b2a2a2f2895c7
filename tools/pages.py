"""What the pages of the documentation call while they are built, in blocks that readers do not see."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING

from torchbayes.report import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CSS_PER_INCH = 100


def shown(figure: Figure, caption: str) -> str:
    """Return a figure as HTML that holds its picture; the block prints it, as only its own words reach the page."""
    data = base64.b64encode(png(figure)).decode()
    width = round(figure.get_figwidth() * _CSS_PER_INCH)
    image = f'<img alt="{escape(caption)}" width="{width}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"
