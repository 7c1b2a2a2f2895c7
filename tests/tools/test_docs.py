"""The pages say what is so. Every rule fires on a small page that breaks it, and is quiet on one that does not."""

import ast
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from tools.docs import code, commands, docstrings, everything, places, prose
from tools.docs.examples import write_examples
from tools.docs.pages import Fault, Page, read

import torchbayes as tb

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
WORDS = {"averaging_lr", "Laplace", "learned"}


def said(faults: Iterable[Fault]) -> str:
    return "\n".join(map(str, faults))


def page(text: str, path: str = "docs/page.md") -> Page:
    return Page(path, text)


@pytest.mark.slow
def test_the_pages_say_what_is_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_examples(tmp_path)  # once for all pages, none of which may change them

    def linked(folder: Path) -> None:
        for example in tmp_path.iterdir():
            (folder / example.name).symlink_to(example)

    monkeypatch.setattr(commands, "write_examples", linked)
    assert said(everything.check(ROOT)) == ""


def test_one_version_is_said_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == citation["version"] == tb.__version__
    assert f"The first version, {tb.__version__}." in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)
def test_an_api_page_has_names_to_show(file: Path) -> None:
    modules = re.findall(r"^::: ([\w.]+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(modules) >= 1
    for module in modules:
        home = ROOT / "experiments" if module.startswith("torchbayes_experiments") else ROOT
        path = home / "src" / module.replace(".", "/")
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        body = ast.parse(source.read_text(encoding="utf-8")).body
        defined = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        exported = [node for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
        shown = [name for name in defined if not name.startswith("_")] + exported
        assert shown, f"{module} has no __all__ and defines nothing public, so its page would be empty"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("`averaging_lr`", "`averaging_rate`", "named nowhere"),
        ("`tb.SWAG`", "`tb.SWAGG`", "there is no `torchbayes.SWAGG`"),
        ("`torchbayes.networks`", "`torchbayes.nets`", "there is no `torchbayes.nets`"),
        (
            "`torchbayes.report.figures.Band`",
            "`torchbayes.report.figures.Ribbon`",
            "`torchbayes.report.figures.Ribbon`",
        ),
        ("`priors.Flat()`", "`priors.Level()`", "Level"),
        ("`posterior.functions(30)`", "`posterior.networks(30)`", "`Posterior` has no `networks`"),
        ("`model.layout.size`", "`model.layouts.size`", "`Model` has no `layouts`"),
        ("`density.plan`", "`density.way`", "`LogDensity` has no `way`"),
        ("`SWAG(rank=20)`", "`SWAG(ranks=20)`", "ranks"),
        ("`fit(…, start=net)`", "`fit(…, begin=net)`", "begin"),
        ("`SGHMC(chains=M, schedule=Cycles(…))`", "`SGHMC(chains=M, schedule=Cycle(…))`", "nothing is called `Cycle`"),
        ('`Laplace(structure="kronecker")`', '`Laplace(structure="kron")`', "cannot be 'kron'"),
        ('`Laplace(curvature="fisher")`', '`Laplace(curvature="gauss")`', "cannot be 'gauss'"),
        ('`structure="dense"`', '`structure="full"`', "no `structure` can be 'full'"),
        ("`burn_in=0.0`", "`burnin=0.0`", "nothing takes an argument `burnin`"),
        ("`calibration=`", "`recalibration=`", "nothing takes an argument `recalibration`"),
    ],
)
def test_inline_code_is_held_against_the_package(right: str, wrong: str, message: str) -> None:
    words = WORDS | {"burn_in"}
    assert said(code.check_spans(page(f"Say {right}."), words)) == ""
    assert message in said(code.check_spans(page(f"\n\nSay {wrong}."), words))
    assert said(code.check_spans(page(f"\n\nSay {wrong}."), words)).startswith("docs/page.md:3: ")


BLOCK = """import torchbayes as tb
from torchbayes.networks import mlp

model = tb.Model(mlp(1, 1), tb.likelihoods.Gaussian(0.1))
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("tb.MAP(members=3)", "tb.MAP(member=3)", "member"),
        ("tb.Adam(0.01)", "tb.Adams(0.01)", "there is no `torchbayes.Adams`"),
        ("from torchbayes.data import load", "from torchbayes.data import get", "there is no `torchbayes.data.get`"),
        ("tb.fit(model, (1, 2), tb.MAP())", "tb.fit(model, tb.MAP())", "missing a required argument"),
        ("tb.predict(x, y).probs", "tb.predict(x, y).probabilities", "`Predictive` has no `probabilities`"),
        ("tb.evaluate(x, y).metrics", "tb.evaluate(x, y).scored", "`Evaluation` has no `scored`"),
        ("tb.fit(model, x, tb.MAP()).save(x)", "tb.fit(model, x, tb.MAP()).write(x)", "`Posterior` has no `write`"),
        ("model.layout", "models.layout", "nothing is called `models`"),
        ("x", "x = = 1", "does not compile"),
        ('tb.Laplace(structure="ekfac")', 'tb.Laplace(structure="ek-fac")', "cannot be 'ek-fac'"),
    ],
)
def test_python_blocks_are_held_against_the_package(right: str, wrong: str, message: str) -> None:
    def text(line: str) -> Page:
        return page(f"# Page\n\n```python\n{BLOCK}x = y = model\n{line}\n```\n")

    assert said(code.check_blocks(text(right))) == ""
    actual = said(code.check_blocks(text(wrong)))
    assert message in actual
    assert actual.startswith("docs/page.md:9: ")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("`averaging_lr`", "`averaging_rate`", "named nowhere"),
        ("`draws`", "`drawings`", "named nowhere"),
        ("`means()`", "`averages()`", "nothing is called `averages`"),
        ("`json.dumps`", "`yaml.dumps`", "nothing is called `yaml`"),
        ("`Laplace(structure=...)`", "`Laplace(structures=...)`", "structures"),
        ("`NUMBER.KIND`", "`quince.kind`", "nothing is called `quince`"),
    ],
)
def test_docstrings_are_held_against_the_package(right: str, wrong: str, message: str) -> None:
    def actual(text: str) -> str:
        source = f'import json\n\nclass C:\n  def f(draws):\n    """Do {text}."""\n    return json, draws\n'
        return said(docstrings.check_source("src/a.py", source, WORDS | {"draws"}))

    assert actual(right) == ""
    assert message in actual(wrong)
    assert actual(wrong).startswith("src/a.py:4: ")


def test_blocks_of_one_session_share_names_and_others_do_not() -> None:
    first, second = (
        '```python exec="on" session="{}"\n{}\n```\n'.format(*pair) for pair in (("a", "x = 1"), ("b", "x"))
    )
    assert "nothing is called `x`" in said(code.check_blocks(page(first + second)))
    assert said(code.check_blocks(page(first + second.replace('"b"', '"a"')))) == ""


FIT = "torchbayes fit --data digits --method MAP --directory run\n"
CHAINS = "torchbayes fit --data digits --method HMC --steps 300 --directory chains\n"


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("torchbayes list methods", "torchbayes show methods", "there is no command 'show'"),
        ("torchbayes list methods", "torchbayes list method", "there is no kind 'method'"),
        (FIT, FIT.replace("MAP", "MAPP"), "MAPP"),
        (FIT, FIT.replace("--data", "--dataset"), "there is no option --dataset"),
        (FIT, FIT.replace("digits", "digit"), "digit"),
        (FIT, FIT.replace(" --directory run", ""), "`--directory` must be given"),
        (FIT + "torchbayes evaluate run", "torchbayes evaluate run\n" + FIT, "no earlier line"),
        (CHAINS + "torchbayes diagnose chains", FIT + "torchbayes diagnose run", "'run' is a run of MAP"),
        (CHAINS, FIT.replace("--directory", "--steps 300 --directory"), "`--steps` is for samplers"),
        (FIT + CHAINS, FIT + FIT, "an earlier line leaves a run in run"),
        (
            FIT + "torchbayes fit --method Laplace --start run --directory laplace",
            "torchbayes fit --method Laplace --start run --directory laplace\n" + FIT,
            "there is no file",
        ),
        (
            FIT + "torchbayes compare --data digits --methods single --reference run",
            "torchbayes compare --data digits --methods single --reference run",
            "no earlier line",
        ),
        (
            CHAINS + "torchbayes compare --data digits --methods single --reference chains",
            CHAINS + "torchbayes compare --data digits --methods single --network small_cnn --reference chains",
            "has network mlp",
        ),
        ("torchbayes reproduce hmc_uci --seeds 2", "torchbayes reproduce hmc_uic --seeds 2", "hmc_uic"),
        ("torchbayes reproduce --list", "torchbayes reproduce hmc_uci --scale large", "there is no scale 'large'"),
        ("torchbayes evidence --networks linear cnn", "torchbayes evidence --networks linear rnn", "no network 'rnn'"),
        ("make test-fast", "make tests-fast", "no target `tests-fast`"),
        ("python -m benchmarks.memory", "python -m benchmarks.memories", "memories"),
        ("python tools/budgets.py", "python tools/budget.py", "budget.py"),
        ("torchrun --nproc-per-node 2 -m " + FIT, "torchrun -m " + FIT.replace("MAP", "MAPP"), "MAPP"),
        ("pip install -e .", "poetry install", "'poetry' is no command the docs know"),
    ],
)
def test_lines_for_the_shell_go_through_the_real_parser(right: str, wrong: str, message: str) -> None:
    assert said_of_lines(right) == ""
    assert message in said_of_lines(wrong)


@cache  # several lines are right in more than one case
def said_of_lines(text: str) -> str:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "write_examples", lambda _: None)  # no line here reads one
        return said(commands.check_commands(page(f"```bash\n{text}\n```\n"), ROOT, Path(folder)))


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("`make docs`", "`make pages`", "no target `pages`"),
        ("`torchbayes fit --resume`", "`torchbayes fit --continue`", "no option --continue"),
        ("`torchbayes compare | fit`", "`torchbayes compare | train`", "there is no command 'train'"),
        ("`--method.members`", "`--method.networks`", "no command has the option --method.networks"),
        ("`--steps`", "`--length`", "no command has the option --length"),
        ("`python -m benchmarks.layout`", "`python -m benchmarks.layouts`", "layouts"),
    ],
)
def test_commands_in_inline_code_exist(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    assert said(commands.check_commands(page(f"Run {right}."), ROOT, tmp_path)) == ""
    assert message in said(commands.check_commands(page(f"Run {wrong}."), ROOT, tmp_path))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("docs/design.md", "docs/designs.md"),
        ("methods/mcmc/hmc.py", "methods/mcmc/hamilton.py"),
        ("src/torchbayes/cli/", "src/torchbayes/commandline/"),
        ("report.html", "reports.html"),
        ("figure_1.png", "picture_1.png"),
        ("demo/report.html", "demos/report.html"),
        ("RUN/config.yaml", "run/config.yaml"),
    ],
)
def test_files_that_a_page_names_are_there_or_written(right: str, wrong: str) -> None:
    words = everything.code_of(ROOT)
    assert said(places.check_files(page(f"See `{right}`."), ROOT, words)) == ""
    assert f"there is no file `{wrong}`" in said(places.check_files(page(f"See `{wrong}`."), ROOT, words))


@pytest.mark.parametrize(
    ("code", "written"),
    [("open('new.json')", True), ("f'{home}/new.json or'", True), ("say anew.jsonl", False), ("new_json'", False)],
)
def test_a_file_is_written_by_code_that_quotes_its_name_or_the_end_of_its_path(code: str, written: bool) -> None:
    assert (said(places.check_files(page("See `new.json`."), ROOT, code)) == "") == written


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("[a](design.md)", "[a](designs.md)", "the link to `designs.md` leads nowhere"),
        ("[a](design.md#one-vector)", "[a](design.md#two-vectors)", "has no heading `#two-vectors`"),
        ("## Here\n[a](#here)", "## Here\n[a](#there)", "has no heading `#there`"),
        ("a[^b]\n\n[^b]: c", "a[^b]\n\n[^c]: c", "the footnote `[^b]` says nothing"),
        ("![a](../LICENSE)", "![a](../LICENCE)", "leads nowhere"),
    ],
)
def test_links_lead_somewhere(right: str, wrong: str, message: str) -> None:
    others = [other for other in read(ROOT) if other.path == "docs/design.md"]
    assert said(places.check_links([page(right), *others], ROOT)) == ""
    assert message in said(places.check_links([page(wrong), *others], ROOT))


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("word " * 34 + ".", "word " * 35 + ".", "a sentence of 35 words"),
        ("- " + "word. " * 85, "- " + "word. " * 86, "a paragraph of 86 words"),
        ("`a b c d e`, " * 34, "`a b c d e`, " * 35, "a sentence of 35 words"),
        ("a [link of four words](design.md) " * 6, "a [link of four words](design.md) " * 7, "a sentence of 35 words"),
    ],
)
def test_sentences_and_paragraphs_are_short(right: str, wrong: str, message: str) -> None:
    assert said(prose.check_prose(page(right.replace(" .", ".")))) == ""
    assert message in said(prose.check_prose(page(wrong.replace(" .", "."))))
    assert said(prose.check_prose(page(wrong, "docs/decisions/0001-a.md"))) == ""
    assert said(prose.check_prose(page(f"```text\n{wrong}\n```\n\n| a |\n|---|\n| {wrong.strip('- ')} |\n"))) == ""


def test_every_page_is_in_the_navigation_and_only_pages_are() -> None:
    pages = [page("", "docs/a.md"), page("", "docs/b/c.md"), page("", "README.md")]
    nav = [{"A": "a.md"}, {"B": [{"C": "b/c.md"}]}]
    assert said(places.check_navigation(pages, places.navigation(nav))) == ""
    assert "docs/b/c.md:1: the page is not in the navigation" in said(places.check_navigation(pages, ["a.md"]))
    assert "names `d.md`" in said(places.check_navigation(pages, ["a.md", "b/c.md", "d.md"]))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("docs/choosing.md", "docs/index.md"),
        ("docs/tutorials/a.md", "docs/index.md"),
        ("docs/decisions/0001-a.md", "docs/decisions/README.md"),
    ],
)
def test_every_page_is_in_the_lists_that_should_have_it(path: str, name: str) -> None:
    links = {"docs/index.md": "", "README.md": "", "docs/decisions/README.md": ""}
    every = {
        other: f"[a]({'../' * other.count('/')}{path}) [b]({'../' * other.count('/')}docs/decisions/README.md)"
        for other in links
    }

    def actual(texts: dict[str, str]) -> str:
        return said(places.check_lists([page("", path), *(page(text, other) for other, text in texts.items())]))

    assert actual(every) == ""
    assert actual({**every, name: every[name].split()[1]}) == f"{path}:1: {name} does not link to the page"


def test_what_a_page_must_tell_is_told() -> None:
    choosing = page("`SWAG(members=M)` and `MAP`, but HMC without code")
    assert said(places.check_told(choosing, "docs/page.md", ["MAP", "SWAG"], "method")) == ""
    actual = said(places.check_told(choosing, "docs/page.md", ["MAP", "HMC"], "method"))
    assert actual == "docs/page.md:1: the page does not name the method `HMC`"


def test_every_experiment_of_a_list_is_registered() -> None:
    def listed(name: str) -> str:
        return said(places.check_listed(page(f"- `{name}` (MNIST): holds"), ["hmc_uci"]))

    assert listed("hmc_uci") == ""
    assert "there is no experiment `hmc_uic`" in listed("hmc_uic")


def test_every_public_name_is_shown_by_some_page_of_the_api() -> None:
    names: dict[str, Any] = {"fit": tb.fit, "priors": tb.priors}
    shown = page("::: torchbayes.selection\n\n::: torchbayes.model.priors\n")
    assert said(everything.check_shown([shown], names)) == ""
    assert (
        said(everything.check_shown([page("::: torchbayes.selection\n")], names))
        == "docs/api:1: no page shows `priors`"
    )
    assert "there is no module `torchbayes.prior`" in said(everything.check_shown([page("::: torchbayes.prior\n")], {}))
