"""Tutorials are notebooks: what both have of a run, the names that the displayed code uses, what a notebook shows."""

import ast
import builtins
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools import notebooks

TUTORIALS = sorted((Path(__file__).parents[2] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r'^```python exec="on" source="above"[^\n]*session="(\w+)"[^\n]*\n(.*?)^```$', re.M | re.S)


def displayed(page: Path) -> dict[str, list[str]]:
    """Return the blocks that a reader sees, by session."""
    sessions: dict[str, list[str]] = {}
    for session, code in BLOCK.findall(page.read_text()):
        sessions.setdefault(session, []).append(code)
    return sessions


def undefined(code: str) -> set[str]:
    """Return names that are used but never bound."""
    nodes = [*ast.walk(ast.parse(code))]
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)} | set(dir(builtins))
    bound |= {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    imports = [alias for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for alias in n.names]
    bound |= {alias.asname or alias.name.partition(".")[0] for alias in imports}
    return {n.id for n in nodes if isinstance(n, ast.Name)} - bound


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_displayed_code_defines_the_names_that_it_uses(page: Path) -> None:
    for blocks in displayed(page).values():
        assert undefined("\n".join(blocks)) == set()


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_tutorial_has_a_picture_at_its_top_and_becomes_a_notebook(page: Path) -> None:
    cells = notebooks.cells_of(page.read_text())
    assert sum("top" in cell.metadata for cell in cells) == 1
    notebook = notebooks.notebook_of(cells)
    nbformat.validate(notebook)
    title, install, *rest = notebook.cells
    assert title.source.startswith("# ")
    assert install.source.startswith("# %pip install 'torchbayes")
    codes = [cell.source for cell in rest if cell.cell_type == "code"]
    assert codes
    assert not any("tools" in code or "```" in code for code in codes)
    texts = [cell.source for cell in rest if cell.cell_type == "markdown"]
    assert not any(".md)" in text or "exec=" in text for text in texts)


PAGE = """# A page

See [another](other.md), or [far away](https://example.org).

```python exec="on" source="above" result="text" session="a"
import sys
print("see", end="")
print("n")
print("a warning", file=sys.stderr)
```

```python exec="on" html="true" session="a"
print('<figure><img alt="A" src="data:image/png;base64,AA=="><figcaption>A &lt; B</figcaption></figure>')
```

```python exec="on" html="true" top="true" session="a"
print('<figure><img alt="T" src="data:image/png;base64,BB=="><figcaption>Top</figcaption></figure>')
```

```python exec="on" source="above" session="a"
6 * 7
```

The end.
"""


@pytest.mark.slow
def test_page_and_notebook_show_what_one_run_has_printed() -> None:
    cells = notebooks.run(notebooks.cells_of(PAGE))
    text, shown = notebooks.page_of(cells, "a.ipynb")
    assert "```python\nimport sys" in text
    assert "```text\nseen\n```" in text
    assert "warning" not in text.partition("```text")[2]
    assert "<img" not in text
    assert text.index('data-shown="0"') < text.index("See [another](other.md)") < text.index('data-shown="1"')
    assert [re.findall('alt="(.)"', html) for html in shown] == [["T"], ["A"]]
    assert 'href="a.ipynb"' in shown[0]

    notebook = notebooks.notebook_of(cells)
    nbformat.validate(notebook)
    kinds = ["markdown", "markdown", "code", "markdown", "code", "markdown", "code", "markdown"]
    title, top, _, links, first, picture, last, _ = notebook.cells
    assert [cell.cell_type for cell in notebook.cells] == kinds
    assert (title.source, top.source) == ("# A page", "![Top](data:image/png;base64,BB==)\n\n*Top*")
    assert links.source == "See another, or [far away](https://example.org)."
    assert [output.text for output in first.outputs] == ["seen\n"]
    assert picture.source == "![A < B](data:image/png;base64,AA==)\n\n*A < B*"
    assert last.outputs[0].data["text/plain"] == "42"
    assert notebooks.notebook_of(cells) == notebook

    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        notebooks.run(notebooks.cells_of('# A\n\n```python exec="on" source="above"\n1 / 0\n```\n'))


def test_what_was_recorded_is_shown_and_not_run() -> None:
    cells = notebooks.run(notebooks.cells_of("# A\n\n```python\n1 / 0\n```\n\n```text\ninfinity\n```\n\nEnd.\n"))
    assert [output.text for output in notebooks.notebook_of(cells).cells[2].outputs] == ["infinity\n"]
    assert notebooks.page_of(cells, "")[0].endswith("```python\n1 / 0\n```\n\n```text\ninfinity\n```\n\nEnd.\n\n")


@pytest.mark.parametrize("line", ["!!! note", '=== "Tab"', '--8<-- "a.md"', "::: torchbayes", "[a](b.md){ .c }"])
def test_what_notebooks_do_not_know_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="Write it plainly"):
        notebooks.cells_of(f"# A\n\n{line}\n")


def test_names_of_hidden_code_would_be_noticed() -> None:
    assert undefined("import a.b as c\nfor i in c: show(i)") == {"show"}


PROGRESS = """
import time, torch, torchbayes as tb
from torch import nn
from torchbayes.driver.progress import counted
with counted("work", 3, unit="parts") as tell:
    for done in range(1, 4):
        time.sleep(0.6)
        tell(done)
"""


# every kind of output of the tutorial, in one kernel that takes no time to train
SMALL = """
import numpy as np, torch, torchbayes as tb
from torchbayes.report import figures
data = tb.data.load("two_moons", train_size=40)
model = tb.Model(torch.nn.Linear(2, 2), tb.likelihoods.Categorical())
one = tb.fit(model, data.train, tb.MAP(epochs=1))
evaluations = {"MultiSWAG": tb.evaluate(one, data.test)}
"""
FIGURE = "figure = figures.severity_curves({'MAP': np.ones((6, 1))}, 'NLL')\nfigure"
Cells = tuple[list[nbformat.NotebookNode], list[nbformat.NotebookNode], nbformat.NotebookNode]


@pytest.fixture(scope="module", params=["small", pytest.param("tutorial", marks=pytest.mark.study)])
def executed(request: pytest.FixtureRequest) -> Cells:
    """Cells of the first tutorial, or as small ones, of objects that are shown, and of progress, run by one kernel."""
    blocks = [SMALL, FIGURE]
    if request.param == "tutorial":
        (whole,) = displayed(next(page for page in TUTORIALS if page.stem == "first-posterior")).values()
        blocks = [re.sub(r"\bepochs=60\b", "epochs=6", block) for block in whole]  # `make docs` runs it in full length
        assert blocks != whole
        assert sum(block.strip().endswith("\nfigure") for block in blocks) >= 3
    shown = ["tb.fit(model, data.train, tb.MAP(epochs=1))", "model", "evaluations['MultiSWAG']", "data"]
    cells = [nbformat.v4.new_code_cell(code) for code in (*blocks, *shown, PROGRESS)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=200, kernel_name="python3").execute()  # an error in a cell is raised
    return cells[: len(blocks)], cells[len(blocks) : -1], cells[-1]


@pytest.mark.slow
def test_figures_and_objects_are_shown_in_a_notebook(executed: Cells) -> None:
    run, shown, _ = executed
    pictures = [cell for cell in run if cell.source.strip().endswith("\nfigure")]
    assert pictures
    for cell in pictures:
        assert "image/png" in cell.outputs[-1].data
    for cell in shown:
        assert cell.outputs[-1].data["text/html"].startswith("<div><strong>")


@pytest.mark.slow
def test_progress_is_one_line_that_is_gone_at_the_end(executed: Cells) -> None:
    (line,) = executed[2].outputs  # no second one, and none of standard error
    assert line.output_type == "display_data"
    assert not line.data["text/plain"]
