"""The report: one HTML file that includes its pictures, style and settings."""

from __future__ import annotations

import base64
import io
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from importlib import metadata, resources
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchbayes.checks import check_entries, check_kind, check_object, check_text, optional
from torchbayes.native.process import full_path
from torchbayes.posteriors.files import write_whole
from torchbayes.report.style import DPI, png
from torchbayes.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PNG = b"\x89PNG\r\n\x1a\n"
CSS_PER_INCH = 100
_UNSEEN = 4.0  # of 255, root mean square over a picture: below, its colours look alike
_PACKAGES = ("torchbayes", "torch", "numpy", "scikit-learn", "matplotlib")


@dataclass(frozen=True)
class Picture:
    """A figure of the report.

    Attributes:
        title: Heading.
        image: A matplotlib figure, the bytes of a PNG, or the path of one.
        caption: What is drawn, of which data, and how to read it, so that the picture can stand alone.
        alt: What it shows, for readers who do not see it; the caption if empty.
        live: What a script draws in its place on a screen, as functions of `report.live` give it; without
            scripts and in print the image is shown.
    """

    title: str
    image: Figure | bytes | str | Path
    caption: str
    alt: str = ""
    live: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The alternative text, on one line."""
        return " ".join((self.alt or self.caption or self.title).split())

    def __post_init__(self) -> None:
        check_text(title=self.title, caption=self.caption, alt=self.alt)
        optional(check_kind, Mapping, "what functions of `report.live` give", live=self.live)
        if not isinstance(self.image, bytes | str | Path):
            check_object(("savefig",), "what the functions of `figures` give", image=self.image)


@dataclass(frozen=True)
class Page:
    """A page that a notebook shows, and that can be saved.

    Attributes:
        title: Heading.
        html: All of it: one HTML text that needs no network and no other file.
    """

    title: str
    html: str = field(repr=False)

    def __post_init__(self) -> None:
        check_text(title=self.title, html=self.html)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all.

        Args:
            path: The file, such as `report.html`.

        Returns:
            The path.
        """
        check_kind((str, PathLike), "a path", path=path)
        return write_whole(path, self.html.encode("utf-8", "replace"))

    def _repr_html_(self) -> str:
        # in a frame, as the styles of the page are not those of the notebook
        style = "width:100%;height:46rem;border:1px solid #dfe3e9;border-radius:6px"
        return f'<iframe title="{escape(self.title)}" srcdoc="{escape(self.html)}" style="{style}"></iframe>'


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers.

    Returns:
        name -> version of the packages that are installed.
    """
    by_package = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            by_package[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return by_package


def write_report(
    path: str | Path,
    *,
    title: str,
    lead: str = "",
    tables: Iterable[Table] = (),
    figures: Iterable[Picture] = (),
    folded: Iterable[Table] = (),
    procedure: str = "",
    settings: str | Mapping[str, Any] | None = None,
) -> Path:
    """Write one self-contained HTML file, which needs no network and no other file.

    A script inside sorts and filters tables, switches methods off, and opens the row behind a point; without it, and in
    print, all rows and the pictures of all figures are shown.

    Args:
        path: The file, such as `run/report.html`; written whole or not at all.
        title: Heading.
        lead: What was done and found; paragraphs are separated by empty lines.
        tables: In order.
        figures: In order, after the tables.
        folded: Tables that open on a click, beneath the figures.
        procedure: How it was made, folded too; paragraphs are separated by empty lines.
        settings: The resolved configuration, YAML text or a mapping, shown folded with the versions in use.

    Returns:
        The path.

    Raises:
        ValueError: An image is not a PNG.
    """
    check_kind((str, PathLike), "a path", path=path)
    return page(
        title=title, lead=lead, tables=tables, figures=figures, folded=folded, procedure=procedure, settings=settings
    ).save(path)


def page(
    *,
    title: str,
    lead: str = "",
    tables: Iterable[Table] = (),
    figures: Iterable[Picture] = (),
    folded: Iterable[Table] = (),
    procedure: str = "",
    settings: str | Mapping[str, Any] | None = None,
) -> Page:
    """Return what `write_report` writes."""
    import jinja2
    import yaml

    tables, folded = (_parts(name, each, Table) for name, each in (("tables", tables), ("folded", folded)))
    figures = _parts("figures", figures, Picture)
    check_text(title=title, lead=lead, procedure=procedure)
    if settings is not None:
        check_kind((str, Mapping), "YAML text or a mapping", settings=settings)

    template, style, script = (
        resources.files("torchbayes.report").joinpath("page", name).read_text("utf-8")
        for name in ("template.html", "page.css", "page.js")
    )
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    if isinstance(settings, Mapping):
        settings = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    html = environment.from_string(template).render(
        style=style,
        script=script,
        title=title,
        paragraphs=_paragraphs(lead),
        tables=tables,
        figures=[_figure(picture) for picture in figures],
        folded=folded,
        procedure=_paragraphs(procedure),
        settings=settings,
        versions=versions(),
    )
    return Page(title, html)


def save_pictures(home: Path, drawn: Mapping[str, Picture]) -> list[Picture]:
    """Write figures (name without ending -> picture) as PNG files; return them as bytes for a page, not to redraw."""
    pictures = []
    for name, picture in drawn.items():
        image = _png(picture)
        write_whole(home / f"{name}.png", image)
        pictures.append(replace(picture, image=_in_palette(image)))
    return pictures


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _parts(name: str, parts: Any, kind: type) -> list[Any]:
    """Return parts of a report as a list, checked to be of one kind."""
    checked = list(parts) if isinstance(parts, Iterable) and not isinstance(parts, str) else [parts]
    for entry in checked:
        check_entries({name: entry}, check_kind, kind, f"objects of {kind.__name__}")
    return checked


def _png(picture: Picture) -> bytes:
    """Return the image of a picture as the bytes of a PNG."""
    image = picture.image
    if isinstance(image, (str, Path)):
        image = full_path(image).read_bytes()
    data = image if isinstance(image, bytes) else png(image)
    if not data.startswith(_PNG):
        raise ValueError(f"The image of {picture.title!r} must be a PNG; its first bytes are {data[:8]!r}.")
    return data


def _in_palette(data: bytes) -> bytes:
    """Return a PNG of a figure in 256 colours, a third of its size; as it is where that would be seen.

    Lines and letters have few colours and many shades at their edges, which may move a little; photographs have many.
    """
    from PIL import Image, ImageChops, ImageStat

    picture = Image.open(io.BytesIO(data)).convert("RGB")
    reduced = picture.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    moved = ImageStat.Stat(ImageChops.difference(picture, reduced.convert("RGB"))).rms
    if max(moved) > _UNSEEN:
        return data
    reduced.save(stream := io.BytesIO(), format="PNG")
    return min(stream.getvalue(), data, key=len)


def _figure(picture: Picture) -> dict[str, Any]:
    data = _png(picture)
    if not isinstance(picture.image, bytes | str | Path):
        data = _in_palette(data)
    # The header of a PNG has its width in pixels. Scaling by it sets the text of all figures in one size.
    width = int.from_bytes(data[16:20], "big") * CSS_PER_INCH // DPI
    return {
        "title": picture.title,
        "caption": picture.caption,
        "alt": picture.text,
        "width": width,
        "live": picture.live,
        "data": base64.b64encode(data).decode("ascii"),
    }
