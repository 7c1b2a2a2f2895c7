"""The report: one HTML file that carries its pictures, style and settings inside itself."""

from __future__ import annotations

import base64
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchbayes.checks import check_kind, check_object, check_text
from torchbayes.posteriors.files import write_whole
from torchbayes.report.style import DPI, png
from torchbayes.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PNG = b"\x89PNG\r\n\x1a\n"
CSS_PER_INCH = 100
_PACKAGES = ("torchbayes", "torch", "numpy", "scikit-learn", "matplotlib")


@dataclass(frozen=True)
class Picture:
    """A figure of the report.

    Attributes:
        title: its heading, also what screen readers say.
        image: a matplotlib figure, the bytes of a PNG, or the path of one.
        caption: how to read it.
    """

    title: str
    image: Figure | bytes | str | Path
    caption: str

    def __post_init__(self) -> None:
        check_text(title=self.title, caption=self.caption)
        if not isinstance(self.image, bytes | str | Path):
            check_object(("savefig",), "what the functions of `figures` give", image=self.image)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers.

    Returns:
        name -> version; packages that are not installed are left out.
    """
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def write_report(
    path: str | Path,
    *,
    title: str,
    lead: str = "",
    tables: Iterable[Table] = (),
    figures: Iterable[Picture] = (),
    settings: str | Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML file: it needs no network, no other file and no script.

    Args:
        path: the file, for example `run/report.html`; written whole or not at all.
        title: heading.
        lead: what was done and found; paragraphs are separated by empty lines.
        tables: in order.
        figures: in order, after the tables.
        settings: the resolved configuration, YAML text or a mapping, shown folded with the versions in use.

    Returns:
        The path.

    Raises:
        ValueError: if an image is not a PNG.
    """
    import jinja2
    import yaml

    tables, figures = list(_parts("tables", tables, Table)), list(_parts("figures", figures, Picture))
    check_kind((str, PathLike), "a path", path=path)
    check_text(title=title, lead=lead)
    if settings is not None:
        check_kind((str, Mapping), "YAML text or a mapping", settings=settings)

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(
        resources.files("torchbayes.report").joinpath("template.html").read_text("utf-8")
    )
    if isinstance(settings, Mapping):
        settings = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    page = template.render(
        title=title,
        paragraphs=[" ".join(part.split()) for part in lead.split("\n\n") if part.strip()],
        tables=list(tables),
        figures=[_figure(picture) for picture in figures],
        settings=settings,
        versions=versions(),
    )
    return write_whole(path, page.encode())


def _parts(name: str, parts: Any, kind: type) -> Iterable[Any]:
    """Return parts of a report, of one kind.

    Raises:
        TypeError: if one is of another.
    """
    found = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, str) else [parts]
    for part in found:
        check_kind(kind, f"objects of {kind.__name__}", **{name: part})
    return found


def _figure(picture: Picture) -> dict[str, Any]:
    image = picture.image
    if isinstance(image, (str, Path)):
        image = Path(image).read_bytes()
    data = image if isinstance(image, bytes) else png(image)
    if not data.startswith(_PNG):
        raise ValueError(f"The image of {picture.title!r} must be a PNG; its first bytes are {data[:8]!r}.")
    # The header of a PNG gives its width in pixels; scaling by it sets the text of all figures in one size.
    width = int.from_bytes(data[16:20], "big") * CSS_PER_INCH // DPI
    return {
        "title": picture.title,
        "caption": picture.caption,
        "width": width,
        "data": base64.b64encode(data).decode("ascii"),
    }
