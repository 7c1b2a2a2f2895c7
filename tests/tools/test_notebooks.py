"""The displayed code of the tutorials runs as it stands: the names on every page, and what they show in a notebook."""

import ast
import builtins
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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
