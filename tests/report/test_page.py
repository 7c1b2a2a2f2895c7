"""The page as a reader meets it: in a browser without a head, at two widths, and as plain text without scripts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from torch import nn

import torchbayes as tb
from tests.report.helpers import drawn, labels, line, rng
from torchbayes.assess.intervals import predicted_numbers
from torchbayes.data import Data, Pair
from torchbayes.data.base import Standardise
from torchbayes.posteriors.functions import Functions
from torchbayes.report import Picture, Table, figures, live, write_report
from torchbayes.report.evaluation import class_rows, number_rows

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = "</script><b>&amp; \"'é"
FOREIGN = f"{HOSTILE}\u2028漢🙂"  # in texts, which no figure draws
NAMES = ["one", HOSTILE, "three"]
MEBI, NAN = 2**20, float("nan")


def functions(inputs: int, outputs: int, likelihood: Any, draws: int = 7) -> Functions:
    model = tb.Model(nn.Linear(inputs, outputs), likelihood, tb.priors.Normal(scale=1.0))
    generator = torch.Generator().manual_seed(0)
    return Functions(model, torch.randn(draws, model.layout.size, generator=generator))


def data_of(inputs: torch.Tensor, targets: torch.Tensor, classes: tuple[str, ...] = (), **more: Any) -> Data:
    pair, task = Pair(inputs, targets), "classification" if classes else "regression"
    return Data("made", task, pair, pair, classes, Standardise.identity(), None, "made up", **more)


def classified(rows: int, classes: int = 3, draws: int = 7) -> tuple[Functions, torch.Tensor, live.Judged]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 4, generator=generator)
    labels = torch.randint(classes, (rows,), generator=generator)
    drawn = functions(4, classes, tb.likelihoods.Categorical(), draws)
    return drawn, inputs, live.Judged(tb.evaluate(drawn, (inputs, labels)), None, drawn)


def test_cards_hold_what_each_drawn_function_says():
    swag, inputs, judged = classified(5)
    page: Any = live.class_rows({"SWAG": judged}, NAMES, inputs, content=live.texts(lambda _: FOREIGN, "text"))
    (method,) = page["methods"]
    probs_SNK = swag(inputs).double().softmax(-1)
    mean, truth = probs_SNK.mean(0), torch.as_tensor(judged.evaluation.labels)
    assert page["rows"] == [0, 1, 2, 3, 4]
    assert page["truth"] == truth.tolist()
    for row in range(5):
        kept = method["kept"][row]
        assert kept == mean[row].argsort(descending=True).tolist()
        np.testing.assert_allclose(method["means"][row], mean[row, kept], atol=1e-6)
        assert method["draws"][row] == (100 * probs_SNK[:, row, kept].T).round().int().tolist()
    entropy = -(mean * mean.log()).sum(-1)
    noise = -(probs_SNK * probs_SNK.log()).sum(-1).mean(0)
    np.testing.assert_allclose(method["measures"]["noise"], noise, atol=1e-5)
    np.testing.assert_allclose(method["measures"]["disagreement"], entropy - noise, atol=1e-5)
    np.testing.assert_allclose(method["measures"]["true"], mean[range(5), truth], atol=1e-6)
    assert method["marked"] == (mean.argmax(-1) != truth).int().tolist()
    assert page["open"] == int(entropy.argmax())


def test_numbers_are_in_raw_units_and_several_targets_have_no_scatter():
    drawn = functions(2, 1, tb.likelihoods.Gaussian(scale=0.5))
    inputs = torch.randn(6, 2, generator=torch.Generator().manual_seed(2))
    units = Standardise(torch.tensor([100.0]), torch.tensor([7.0]))
    data = replace(data_of(inputs, torch.zeros(6, 1)), target_standardise=units)
    judged = live.Judged(tb.evaluate(drawn, tuple(data.test)), predicted_numbers(drawn, tuple(data.test)), drawn)
    page: Any = live.number_rows({"SWAG": judged}, data, inputs, content=live.Content(lambda _: {}))
    (method,) = page["methods"]
    means_SN = 100 + 7 * drawn(inputs).squeeze(-1).double()
    np.testing.assert_allclose(method["draws"], means_SN.T, rtol=1e-5)
    np.testing.assert_allclose(method["measures"]["predicted"], means_SN.mean(0), rtol=1e-5)
    np.testing.assert_allclose(method["measures"]["sd"], (means_SN.var(0, correction=0) + 3.5**2).sqrt(), rtol=1e-5)
    assert method["measures"]["observed"] == [100] * 6
    both = functions(2, 2, tb.likelihoods.Gaussian(scale=0.5))
    pair = (inputs, torch.zeros(6, 2))
    judged = live.Judged(tb.evaluate(both, pair), predicted_numbers(both, pair), both)
    assert live.number_rows({"SWAG": judged}, data_of(*pair), inputs, content=live.Content(lambda _: {})) is None


def test_texts_are_shown_as_words():
    words, ids = ("", "", "?", "the", "film"), torch.tensor([[0, 1, 3, 4, 2]] * 2)
    content = live.content_of(data_of(ids, torch.zeros(2).long(), ("a", "b"), words=words), None)
    assert content.of(torch.arange(2)) == {"texts": ["the film ?"] * 2}


def size(part: Any) -> int:
    return len(json.dumps(part, ensure_ascii=False, separators=(",", ":")).encode())


@pytest.mark.parametrize(("rows", "classes"), [(1, 3), (100_000, 2), (310, 1000)])
def test_many_rows_and_classes_take_little_of_a_page(rows, classes):
    _, inputs, judged = classified(rows, classes, draws=35 if rows < 10 else 2)
    page: Any = live.class_rows(
        {"SWAG": judged}, [f"class {k}" for k in range(classes)], inputs, content=live.Content(lambda _: {})
    )
    assert size(page) < MEBI / 2
    assert len(page["rows"]) == min(rows, live.ROWS)
    assert len(page["methods"][0]["cloud"]["true"]) <= live.CLOUD if rows > live.ROWS else page["note"] == ""
    surest = judged.evaluation.log_prob.argmin()
    assert int(surest) in page["rows"]  # the most surprising row can be opened


def test_images_take_little_of_a_page_and_are_those_of_their_rows():
    from base64 import b64decode
    from io import BytesIO

    from PIL import Image

    for shape in ((3, 32, 32), (1, 28, 28), (3, 300, 200), (4, 8, 8)):
        images = torch.rand(live.ROWS if max(shape) < 99 else 70, *shape, generator=torch.Generator().manual_seed(0))
        content = live.content_of(data_of(images, torch.zeros(len(images)).long(), ("a", "b")), None)
        rows = torch.arange(min(content.most, len(images)))
        assert len(rows) >= 60
        sprite = content.of(rows)["sprite"]
        assert size(sprite) < 1.5 * MEBI
        sheet = np.asarray(Image.open(BytesIO(b64decode(sprite["source"].partition(",")[2]))))
        at, (height, width) = 17, (sprite["height"], sprite["width"])
        top, left = at // sprite["columns"] * height, at % sprite["columns"] * width
        shown = sheet[top : top + height, left : left + width] / 255
        if (height, width) == shape[1:]:
            picture = images[at].movedim(0, -1) if shape[0] == 3 else 1 - images[at].mean(0)
            np.testing.assert_allclose(shown, picture, atol=0.003)


@pytest.mark.parametrize("rows", [1, 7, 9000])
def test_a_scatter_draws_the_rows_it_is_given(rows):
    x, y, marks = np.arange(rows), np.arange(rows) ** 2, np.arange(rows) % 3 == 0
    figure = figures.row_scatter({"SWAG": (x, y, marks)}, x="noise", y="error", marks=("in", "out"), level=True)
    (axes,) = drawn(figure)
    *groups, level = (line(axes, index) for index in range(len(axes.lines)))
    for group, chosen in zip(groups, [~marks, marks][-len(groups) :], strict=True):
        assert len(group[0]) == min(2000, int(chosen.sum()))
        assert set(group[0]) <= set(x[chosen])
        np.testing.assert_array_equal(group[1], group[0] ** 2)
    np.testing.assert_array_equal(level, [[0, rows - 1]] * 2)
    assert labels(figure) == ["in", "out"][-len(groups) :]


def _pictures() -> list[Picture]:
    _, inputs, judged = classified(40)
    alone = functions(4, 3, tb.likelihoods.Categorical(), draws=1)
    point = live.Judged(tb.evaluate(alone, (inputs, judged.evaluation.labels)), None, alone)
    texts = live.texts(lambda row: f"{FOREIGN} {row} {'long ' * 400}", "text")
    drawn = class_rows({"SWAG": judged, "MAP": point}, NAMES, inputs, content=texts)
    one = functions(4, 1, tb.likelihoods.Gaussian(scale=0.5))
    data = data_of(inputs, torch.randn(40, 1, generator=torch.Generator().manual_seed(3)), target_name=HOSTILE)
    numbers = predicted_numbers(one, tuple(data.test))
    judged = live.Judged(tb.evaluate(one, tuple(data.test)), numbers, one)
    drawn |= {"n": number_rows({"SWAG": judged}, data, inputs, content=live.Content(lambda _: {}))["rows"]}
    dots = [
        figures.Dots("test set", "NLL", {"SWAG": (0.5, 0.4, 0.6), "MAP": (0.25, 0.2, NAN)}, best=["MAP"]),
        figures.Dots("test set", "accuracy", {"SWAG": (0.9, 0.8, 1.0), "MAP": (NAN, NAN, NAN)}, "high"),
    ]
    glance = Picture("Glance", figures.ranked_dots(dots), "Dots.", live=live.panels(dots[:1], dots[1:]))
    return [glance, *drawn.values()]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [["SWAG" if row % 2 else "MAP", float(rng().normal()) + row, f"text {row}", None] for row in range(14)]
    wide = Table(["method", *[f"column {k}" for k in range(30)]], [["SWAG", *range(30)]] * 2, "wide")
    tables = [
        Table(["method", "NLL", HOSTILE, "W1"], rows, "short", title="Scores"), wide,
        Table(["question", "p"], [["https://a.very/long/" + "address" * 40, 0.5]], "one long word", title="Long"),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("page") / "report.html"
    lead = f"{HOSTILE}\n\n{'word' * 100}"
    return write_report(path, title=HOSTILE, lead=lead, tables=tables, figures=_pictures(), folded=[wide])


class Outline(HTMLParser):
    """What a reader of a screen needs of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.labelled = True
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in {"input", "select"} and "label" not in self.inside:
            self.labelled = False
        if tag not in {"meta", "img", "input", "br", "link"}:
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag

    def named(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]


def check_outline(text: str) -> None:
    outline = Outline(text)
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert [len(outline.named(name)) for name in ("header", "main", "footer")] == [1, 1, 1]
    assert outline.named("html")[0]["lang"] == "en"
    assert all(each["alt"] for each in outline.named("img"))
    assert all(each["scope"] == "col" for each in outline.named("th"))
    assert all(each.get("aria-label") for each in outline.named("canvas", "svg"))
    assert all(each.get("aria-label") for _, each in outline.tags if each.get("tabindex") == "0")
    assert outline.labelled
    regions = Counter(each["aria-label"] for _, each in outline.tags if each.get("role") == "region")
    assert set(regions.values()) == {1}
    ids = Counter(each["id"] for _, each in outline.tags if "id" in each)
    assert set(ids.values()) <= {1}


def test_the_page_without_scripts_is_whole_and_safe(page: Path):
    text = page.read_text("utf-8")
    check_outline(text)
    outline = Outline(text)
    assert len(outline.named("img")) == len(_pictures())
    assert len(outline.named("script")) == len(_pictures()) + 1
    assert not outline.named("b") or len(outline.named("b")) == len(_pictures())  # of the captions
    assert len(outline.named("tr")) == 4 + 14 + 2 + 1 + 2  # heads of four tables, and their rows
    parts = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    for part, picture in zip(parts, _pictures(), strict=True):
        assert json.loads(part) == picture.live
        assert "<" not in part
    assert "NaN" not in "".join(parts)
    assert len(text) < 3 * MEBI


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_texts_and_signs_stand_out_from_their_ground(page: Path):
    palettes = re.findall(r":root \{(.*?)\}", page.read_text("utf-8"), re.DOTALL)
    assert len(palettes) == 2
    for palette in palettes:
        colours = dict(re.findall(r"--(\w+): (#\w{6});", palette))
        for text in ("ink", "quiet", "mark", "right", "wrong"):
            for ground in ("paper", "wash", "best"):
                bright, dark = sorted((luminance(colours[name]) for name in (text, ground)), reverse=True)
                if (text in {"ink", "mark"}) or ground != "best":
                    assert (bright + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def browsed(path: Path, width: int, *wanted: str, height: int = 900) -> str:
    """Return what Chromium prints when it opens a page in a window of this size."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
    command = [str(CHROMIUM), *options, f"--window-size={width},{height}", *wanted, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


USE = Path(__file__).with_name("reader.js").read_text("utf-8")


def used(page: Path, width: int) -> tuple[str, dict[str, Any]]:
    """Use a page in a browser; return what it has become, and what was said."""
    path = page.with_name(f"used_{width}.html")
    text = page.read_text("utf-8").replace("</body>", f"<script>{USE}</script></body>")
    path.write_text(text, "utf-8")
    shown = browsed(path, width, "--dump-dom")
    (said,) = re.findall(r'<pre id="said".*?>(.*?)</pre>', shown, re.DOTALL)
    return shown.replace(f"<script>{USE}</script>", ""), json.loads(unescape(said))


in_browser = pytest.mark.skipif(CHROMIUM is None, reason="a page is used in Chromium")


@in_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_reader_sorts_filters_switches_and_opens_rows(page: Path, width: int):
    text, said = used(page, width)
    check_outline(text)
    assert said["fits"]
    assert said["overflow"] == []
    assert said["width"] == 1  # the whole window
    (up, rising), (down, falling), (_, texts) = said["sorted"]
    assert (up, down) == ("ascending", "descending")
    assert rising == sorted(rising)
    assert falling == rising[::-1]
    assert texts == sorted(texts)
    assert said["sorts"] == 1
    assert (said["filtered"], said["count"], said["none"], said["on"]) == (1, "1 of 14 rows", 0, 14)
    assert said["off"] == ["SWAG"]  # the first box is that of MAP
    assert (said["panelOff"], said["panel"]) == (["SWAG"], ["MAP", "SWAG"])
    assert said["metric"] == [["SWAG", "90.0 %"], ["MAP", "–"]]
    opened, home, right, left, end = said["opened"]
    assert opened.startswith("text ")
    assert home == left
    assert len({home, right, end}) == 3
    assert said["text"].startswith(FOREIGN)
    assert (said["draws"], said["point"]) == (3 * 7, 0)  # one network alone has no functions to show
    assert said["pointed"] == said["pinned"] == home
    assert said["axis"] == ["probability of the predicted class", "probability of the true class"]
    assert set(said["still"]) == {"none"}
    assert escape(HOSTILE[:9]) in text


AXE = """axe.run().then(({violations}) => {
  const pre = document.createElement("pre");
  pre.id = "violations";
  pre.textContent = JSON.stringify(violations.map(({id, nodes}) => [id, nodes[0].html]));
  document.body.append(pre);
});"""


def violations(text: str, path: Path, width: int) -> dict[str, str]:
    """Return the rules of accessibility that a page breaks, as axe-core knows them, each with an element."""
    axe = pytest.importorskip("axe_core_python")
    library = Path(axe.__file__).with_name("axe.min.js").read_text("utf-8")
    path.write_text(text.replace("</body>", f"<script>{library}</script><script>{AXE}</script></body>"), "utf-8")
    (said,) = re.findall(r'<pre id="violations">(.*?)</pre>', browsed(path, width, "--dump-dom"), re.DOTALL)
    return dict(json.loads(unescape(said)))


@in_browser
@pytest.mark.slow
def test_axe_finds_no_fault(page: Path, tmp_path: Path):
    light = page.read_text("utf-8")
    dark = light.replace("(prefers-color-scheme: dark)", "all")
    assert dark != light
    path = tmp_path / "axe.html"
    assert violations(light, path, 1280) == {}
    assert violations(dark, path, 400) == {}
    wrong = re.sub(r"--quiet: #\w{6}", "--quiet: #cccccc", light).replace(' lang="en"', "")
    assert violations(wrong, path, 1280).keys() == {"color-contrast", "html-has-lang"}


def brightness(page: Path, path: Path, width: int) -> np.ndarray:
    """Return the mean brightness of each square of 16 pixels of a screenshot, 0 to 1, in which fonts differ little."""
    browsed(page, width, f"--screenshot={path}", height=3200)
    grey = imread(path)[..., :3].mean(-1)
    return grey.reshape(len(grey) // 16, 16, -1, 16).mean((1, 3))


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_a_screenshot_is_as_it_was(page: Path, tmp_path: Path, width: int):
    """A reference is `brightness` as an image; a page with other fonts is nearer to it than one without its style."""
    expected = imread(Path(__file__).with_name(f"page_{width}.png"))[..., 0]
    actual = brightness(page, tmp_path / "page.png", width)
    bare = tmp_path / "bare.html"
    bare.write_text(re.sub(r"<style>.*?</style>", "", page.read_text("utf-8"), flags=re.DOTALL), "utf-8")
    unlike = np.abs(brightness(bare, tmp_path / "bare.png", width) - expected).mean()
    assert np.abs(actual - expected).mean() < 0.6 * unlike  # 0.03 with the same fonts, 0.48 with serif ones
    assert unlike > 0.02
