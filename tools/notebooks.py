"""Tutorials as notebooks: a hook of MkDocs that runs each page of docs/tutorials once, as the notebook that it offers.

A block that begins with `python exec="on"` is a cell; all cells of a page are run by one kernel, from top to bottom.

source="above"  readers see the code; other blocks are run, and only what they print is on the page
result="text"   what is printed is on the page as text
html="true"     what is printed is on the page as it is: a picture
top="true"      and stands under the title, wherever the block is

Where no block of a page is run and seen, its plain blocks are cells with the outputs that the page has recorded.
"""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[1]  # where hidden blocks find `tools`
FOLDER = "tutorials/"
# Seconds on a machine that is busy, where an output that comes late must not be left out without a word.
HOW = {"timeout": 1800, "startup_timeout": 300, "iopub_timeout": 300, "raise_on_iopub_timeout": True}
HOW |= {"coalesce_streams": True, "extra_arguments": ["--log-level=ERROR"]}
RUN = re.compile(r'^```python exec="on"([^\n]*)\n(.*?)^```\n', re.M | re.S)
RECORDED = re.compile(r"^```python()\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
ONLY_ON_PAGES = re.compile(r"^(?:!!!|\?\?\?|===|:::|--8<--)|\]\([^)]*\)\{", re.M)
LINK = re.compile(r"(?<![!\w\])])\[([^\]]+)\]\(([^)]+)\)")
EXTRA = re.compile(r"pip install '(torchbayes\[\w+\])'")

_pages: dict[str, Future[list[NotebookNode]]] = {}


def cells_of(markdown: str) -> list[NotebookNode]:
    """Return a page as cells; those of code have the words of their fence in `metadata`.

    Args:
        markdown: the page.

    Raises:
        ValueError: if it uses what notebooks do not know, such as admonitions.
    """
    if (unknown := ONLY_ON_PAGES.search(markdown)) is not None:
        raise ValueError(f"notebooks do not know {unknown[0]!r}, so tutorials do without. Write it plainly.")
    blocks = [*RUN.finditer(markdown)]
    if not any("source=" in block[1] for block in blocks):
        blocks = sorted([*blocks, *RECORDED.finditer(markdown)], key=lambda block: block.start())
    cells, end = [], 0
    for block in blocks:
        if between := markdown[end : block.start()].strip():
            cells.append(new_markdown_cell(between))
        words = dict(re.findall(r'(\w+)="([^"]*)"', block[1]))
        if block.re is RECORDED:
            words = {"source": "above", "result": "text", "recorded": "true"}
        cells.append(new_code_cell(block[2].strip(), metadata=words))
        if block.re is RECORDED and block[3]:
            cells[-1].outputs = [new_output("stream", name="stdout", text=block[3])]
        end = block.end()
    return [*cells, *([new_markdown_cell(last)] if (last := markdown[end:].strip()) else [])]


def run(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Run the cells of code that hold no recorded output, in place, and return all.

    Args:
        cells: of a page; a cell that fails ends the build with its error.
    """
    todo = [cell for cell in cells if cell.cell_type == "code" and "recorded" not in cell.metadata]
    if todo:
        NotebookClient(new_notebook(cells=todo), resources={"metadata": {"path": str(ROOT)}}, **HOW).execute()
    for cell in todo:
        cell.outputs = [output for output in cell.outputs if _is_shown(output)]
    return cells


def _is_shown(output: NotebookNode) -> bool:
    """Return whether an output is for readers: warnings and lines of progress, which are gone at the end, are not."""
    return output.name == "stdout" if output.output_type == "stream" else output.data.get("text/plain", "") != ""


def printed(cell: NotebookNode) -> str:
    """Return what a cell has printed."""
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def page_of(cells: list[NotebookNode], notebook: str) -> tuple[str, list[str]]:
    """Return a page as Markdown without blocks to run, and the HTML of its places `<div data-shown="NUMBER"></div>`.

    Args:
        cells: of the page, run.
        notebook: the address of its notebook.
    """
    texts, shown = [], [f'<p class="notebook"><a href="{notebook}" download>Open as a notebook</a></p>']
    for cell in cells:
        if cell.cell_type == "markdown":
            texts.append(f"{cell.source}\n\n")
            continue
        words = cell.metadata
        if "source" in words:
            texts.append(f"```python\n{cell.source}\n```\n\n")
        if "top" in words:
            shown[0] += printed(cell)
        elif "html" in words:
            texts.append(f'<div data-shown="{len(shown)}"></div>\n\n')
            shown.append(printed(cell))
        elif "result" in words and printed(cell):
            texts.append(f"```text\n{printed(cell).rstrip()}\n```\n\n")
    title, _, rest = "".join(texts).partition("\n")
    return f'{title}\n\n<div data-shown="0"></div>\n{rest}', shown


def notebook_of(cells: list[NotebookNode]) -> NotebookNode:
    """Return the notebook that readers get: no hidden code, plain Markdown, a cell that says what to install.

    Args:
        cells: of the page, run.
    """
    text = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    package = (EXTRA.search(text) or ["", "torchbayes"])[1]
    title, _, rest = cells[0].source.partition("\n")
    kept = [new_markdown_cell(title), new_code_cell(f"# %pip install '{package}'")]
    kept.append(new_markdown_cell(_plain(rest)))
    for cell in cells[1:]:
        words = cell.metadata
        if cell.cell_type == "markdown":
            kept.append(new_markdown_cell(_plain(cell.source)))
        elif "source" in words:
            kept.append(new_code_cell(cell.source, outputs=deepcopy(cell.outputs)))
        elif "top" in words:
            kept.insert(1, _picture(printed(cell)))
        elif "html" in words:
            seen = [output for output in kept[-1].get("outputs", []) if "data" in output]
            kept.append(_picture(printed(cell), caption_only=bool(seen)))
        elif "result" in words:
            kept.append(new_markdown_cell(f"```text\n{printed(cell).rstrip()}\n```"))
    return _numbered([cell for cell in kept if cell.source])


def _plain(markdown: str) -> str:
    """Return Markdown whose links to other pages, which a notebook does not have beside it, are their words alone."""
    return LINK.sub(lambda link: link[0] if link[2].startswith("http") else link[1], markdown).strip()


def _picture(html: str, *, caption_only: bool = False) -> NotebookNode:
    """Return what `tools.pages.shown` made as a cell, or only its caption."""
    image, caption = re.search('src="([^"]+)"', html), re.search("<figcaption>(.*?)</figcaption>", html, re.S)
    if image is None or caption is None:
        return new_markdown_cell("" if caption_only else html)
    told = unescape(caption[1])
    return new_markdown_cell(f"*{told}*" if caption_only else f"![{told}]({image[1]})\n\n*{told}*")


def _numbered(cells: list[NotebookNode]) -> NotebookNode:
    """Return a notebook whose bytes depend on its cells alone."""
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    codes = enumerate((cell for cell in cells if cell.cell_type == "code"), 1)
    for number, node in [(number, node) for number, cell in codes for node in (cell, *cell.outputs)]:
        if "execution_count" in node:
            node.execution_count = number
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def on_pre_build(config: Any) -> None:
    """Begin to run the tutorials, beside the pages that MkDocs builds meanwhile."""
    pool = ThreadPoolExecutor(2)  # kernels at a time
    for file in sorted(Path(config.docs_dir, FOLDER).glob("*.md")):
        text = file.read_text(encoding="utf-8")
        _pages[FOLDER + file.name] = pool.submit(lambda text=text: run(cells_of(text)))
    pool.shutdown(wait=False)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put what the notebook has printed in the place of the blocks to run."""
    if page.file.src_uri not in _pages:
        return markdown
    text, page.shown = page_of(_pages[page.file.src_uri].result(), Path(page.file.src_uri).stem + ".ipynb")
    return text


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put pictures where the page has places for them."""
    for number, shown in enumerate(getattr(page, "shown", [])):
        html = html.replace(f'<div data-shown="{number}"></div>', shown)
    return html


def on_post_build(config: Any) -> None:
    """Write the notebooks beside the pages."""
    for name, cells in _pages.items():
        nbformat.write(notebook_of(cells.result()), Path(config.site_dir, name).with_suffix(".ipynb"))
