import base64
import math
import os
import re
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from torchbayes.posteriors.files import write_whole
from torchbayes.report import Picture, Table, figures, png, savefig, versions, write_report

NASTY = "<script>alert('x')</script> & <M>"


def figure():
    return figures.severity_curves({"MAP": np.arange(6.0)[:, None], "SWAG": np.ones((6, 1))}, "NLL")


def report(path: Path) -> str:
    table = Table(["method", "NLL"], [[NASTY, 0.5], ["SWAG", 0.25], ["HMC", 0.25]], NASTY, better={"NLL": "low"})
    settings = {"method": NASTY, "rank": 20, "lr": 0.01}
    pictures = [Picture(NASTY, figure(), "how to read <it>")]
    write_report(path, title=NASTY, lead="one\n\ntwo\nlines", tables=[table], figures=pictures, settings=settings)
    return path.read_text("utf-8")


def test_report_is_one_file_without_links(tmp_path: Path):
    page = report(tmp_path / "run" / "report.html")
    assert os.listdir(tmp_path / "run") == ["report.html"]
    assert not re.search(r"https?:|<script[^>]|<link|@import|url\(|fetch|import\s*\(", page)
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 1
    prefix, data = sources[0].split(",")
    assert prefix == "data:image/png;base64"
    shown, whole = (
        np.asarray(Image.open(BytesIO(image)).convert("RGB")) for image in (base64.b64decode(data), png(figure()))
    )
    assert np.quantile(np.abs(shown - whole.astype(int)), 0.999) < 16  # of 255: in fewer colours, and smaller
    assert len(data) < 0.6 * len(png(figure()))


@pytest.mark.parametrize(("photograph", "reduced"), [(False, True), (True, False)], ids=["bands", "photographs"])
def test_pictures_are_in_few_colours_unless_that_would_be_seen(tmp_path: Path, photograph: bool, reduced: bool):
    """Bands that overlap have more shades than a palette; a photograph looks different in 256 colours."""
    steps, panel = np.linspace(0, 1, 40), plt.figure(figsize=(8, 6))
    for place in range(1, 2 if photograph else 13):
        axes = panel.add_subplot(*((1, 1, 1) if photograph else (3, 4, place)))
        if photograph:
            axes.imshow(np.stack(np.broadcast_arrays(steps[:, None], steps, steps[:, None] * 7 % 1), -1))
        for number in range(0 if photograph else 12):
            middle = np.sin(6 * steps + number + place)
            axes.plot(steps, middle, color=f"C{number}")
            axes.fill_between(steps, middle - 0.1, middle + 0.1, alpha=0.15, color=f"C{number}")
    path = write_report(tmp_path / "r.html", title="t", figures=[Picture("x", panel, "")])
    data = base64.b64decode(re.findall(r'base64,([^"]*)"', path.read_text("utf-8"))[0])
    assert (Image.open(BytesIO(data)).mode == "P") is reduced
    assert photograph or Image.open(BytesIO(png(panel))).convert("RGB").getcolors(8192) is None  # more than 8,192
    plt.close(panel)


def test_report_escapes_names_and_marks_ties(tmp_path: Path):
    page = report(tmp_path / "report.html")
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &lt;M&gt;") == 7
    assert "how to read &lt;it&gt;" in page
    assert page.count('class="number best" data-value="0.25">0.250<') == 2
    assert 'class="number" data-value="0.5">0.500<' in page
    assert page.count("<p>") == 2
    assert "two lines" in page
    assert "rank: 20\nlr: 0.01" in page
    for name, version in versions().items():
        assert f"{name} {version}\n" in page


def test_report_is_the_same_every_time(tmp_path: Path):
    assert report(tmp_path / "a.html") == report(tmp_path / "b.html")


def test_images_may_be_bytes_or_files_and_are_shown_at_one_scale(tmp_path: Path):
    data = png(figure())
    path = savefig(figure(), tmp_path / "figure.png")
    assert path.read_bytes() == data
    pictures = [Picture("bytes", data, ""), Picture("file", path, ""), Picture("name", str(path), "")]
    page = write_report(tmp_path / "r.html", title="t", figures=pictures).read_text("utf-8")
    assert page.count(base64.b64encode(data).decode()) == 3
    assert page.count('width="540"') == 3  # 5.4 inches
    with pytest.raises(ValueError, match="'x' must be a PNG; its first bytes are b'GIF89a'"):
        write_report(tmp_path / "r.html", title="t", figures=[Picture("x", b"GIF89a", "")])


def test_files_are_whole_or_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_whole(tmp_path / "a", b"old")

    def broken(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="disk"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_drawing_and_saving_leave_the_settings_of_matplotlib_alone(tmp_path: Path):
    before = dict(mpl.rcParams)
    savefig(figure(), tmp_path / "f.png")
    assert dict(mpl.rcParams) == before


def folded(tmp_path: Path) -> str:
    rows = [["HMC", 0.5, None], [NASTY, 0.25, math.inf], ["SWAG", math.nan, -1.5]]
    tables = [Table(["method", "NLL", "W1"], rows, title="Scores"), Table(["chain", "E-BFMI"], [["1", 0.9]])]
    picture = Picture("Heading", figure(), "What is drawn.", alt="What it shows.")
    path = write_report(
        tmp_path / "r.html", title="t", lead="found", figures=[picture], folded=tables, procedure="done\n\nso"
    )
    return path.read_text("utf-8")


def test_tables_are_folded_beneath_the_pictures(tmp_path: Path):
    page = folded(tmp_path)
    order = [
        page.index(part) for part in ("<p>found</p>", "<figure>", "<summary>Scores<", "<summary>How this was made<")
    ]
    assert order == sorted(order)
    assert page.count("<details>") == 4  # two tables, how it was made, settings; none is open
    assert "<summary>Table 2</summary>" in page
    assert page.count('<div class="wide') == 3  # every table and picture scrolls in a container of its own


def test_a_picture_has_a_caption_and_a_text_that_is_not_its_heading(tmp_path: Path):
    page = folded(tmp_path)
    assert '<img alt="What it shows."' in page
    assert "<figcaption><b>Figure 1.</b> What is drawn.</figcaption>" in page
    assert page.count("Heading") == 1
    bare = write_report(tmp_path / "b.html", title="t", figures=[Picture("Heading", figure(), "What is drawn.")])
    assert '<img alt="What is drawn."' in bare.read_text("utf-8")
