"""Folders of the hub: what is read is what was written, the card says what was measured, and nothing is run."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

import torchbayes as tb

INPUTS = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
DATA = INPUTS, (INPUTS.sum(1) > 0).long()
EVERY = ["README.md", "config.json", "posterior.safetensors"]


def model(outputs: int = 2) -> tb.Model:
    torch.manual_seed(0)
    return tb.Model(nn.Linear(2, outputs), tb.likelihoods.Categorical(), tb.priors.Normal(2.0))


@pytest.fixture(scope="module")
def posterior() -> Any:
    return tb.fit(model(), DATA, tb.MAP(members=2, epochs=60, batch_size=20, optimizer=tb.Adam(0.1)), callbacks=())


@pytest.fixture
def folder(posterior: Any, tmp_path: Path) -> Path:
    return tb.hub.save(posterior, tmp_path / "two-classes", evaluation=tb.evaluate(posterior, DATA), dataset="sums")


def header(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


class Hub:
    """The hub, as far as it is used: repositories are folders."""

    def __init__(self, root: Path) -> None:
        self.root, self.private = root, dict[str, bool]()

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        (self.root / repo_id).mkdir(parents=True, exist_ok=True)
        self.private.setdefault(repo_id, private)
        return f"https://hub/{repo_id}"

    def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], commit_message: str) -> None:
        for name in allow_patterns:
            shutil.copy(folder_path / name, self.root / repo_id / name)

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None) -> str:
        path = self.root / repo_id / filename
        if not path.exists() or revision == "gone":
            raise LookupError(f"404: {repo_id}")
        return str(path)


def test_a_folder_gives_the_posterior_back(posterior: Any, folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == EVERY
    actual = tb.hub.load(folder, model())
    assert torch.equal(actual.sample(4), posterior.sample(4))
    assert json.loads((folder / "config.json").read_text())["kind"] == "point"


def test_the_card_has_what_was_measured(posterior: Any, folder: Path) -> None:
    evaluation, said = tb.evaluate(posterior, DATA), header(folder)
    assert said["library_name"] == "torchbayes"
    assert "point" in said["tags"]
    (result,) = said["model-index"][0]["results"]
    assert {entry["type"]: entry["value"] for entry in result["metrics"]} == evaluation.metrics
    assert result["dataset"]["name"] == "sums"
    text = (folder / "README.md").read_text()
    low, high = evaluation.intervals()["nll"]
    assert f"| nll | {evaluation.metrics['nll']:.4g} | {low:.4g} to {high:.4g} |" in text
    assert "Categorical(" in text
    assert "Known problems" not in text


def test_the_hub_reads_the_card(posterior: Any, folder: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    data = hub.ModelCard.load(folder / "README.md").data
    assert data.library_name == "torchbayes"
    measured = {result.metric_type: result.metric_value for result in data.eval_results}
    assert measured == tb.evaluate(posterior, DATA).metrics


def test_problems_and_words_of_the_user_are_in_the_card(posterior: Any, tmp_path: Path) -> None:
    words = {"license": "mit", "base_model": "me/body: x\ntags: [safe]", "text": "Of **two** classes."}
    with_problem = posterior.with_problems(["chain 2 never moved"])
    folder = tb.hub.save(with_problem, tmp_path / "a 'b'\"c", **words)
    text = (folder / "README.md").read_text()
    assert header(folder)["base_model"] == words["base_model"]
    assert "- chain 2 never moved" in text
    assert words["text"] in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(code[0], "card", "exec")
    with pytest.warns(tb.ProblemWarning, match="never moved"):
        tb.hub.load(folder, model()).functions()


def test_the_way_to_the_hub_and_back(posterior: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "secrets.txt").write_text("password")
    api = Hub(tmp_path / "hub")
    assert tb.hub.push(folder, "me/two", api=api) == "https://hub/me/two"
    assert api.private == {"me/two": True}
    assert sorted(path.name for path in (tmp_path / "hub" / "me" / "two").iterdir()) == EVERY
    actual = tb.hub.load("me/two", model(), api=api)
    assert torch.equal(actual.sample(4), posterior.sample(4))
    with pytest.raises(LookupError) as raised:
        tb.hub.load("me/two", model(), revision="gone", api=api)
    assert "so that me/two was looked for on the hub" in raised.value.__notes__[0]


def test_the_arguments_are_those_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    calls: list[str] = []
    for name in ("create_repo", "upload_folder", "hf_hub_download"):
        real = getattr(hub.HfApi, name)

        def call(self: Any, *args: Any, name: str = name, real: Any = real, **kwargs: Any) -> Any:
            import inspect

            inspect.signature(real).bind(self, *args, **kwargs)
            calls.append(name)
            return folder / "posterior.safetensors"

        monkeypatch.setattr(hub.HfApi, name, call)
    tb.hub.push(folder, "me/two")
    tb.hub.load("me/two", model(), revision="main")
    assert calls == ["create_repo", "upload_folder", "hf_hub_download"]


# --- damaged and hostile folders


@pytest.mark.parametrize("cut", [0, 9, 100, -1])
def test_a_damaged_file_is_refused(folder: Path, cut: int) -> None:
    path = folder / "posterior.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:cut] if cut != -1 else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match="damaged"):
        tb.hub.load(folder, model())


class Bomb:
    """What runs a command as it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_folder_runs_no_code(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    for name in ("pytorch_model.bin", "posterior.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb(ran)))
    (folder / "torchbayes_model.py").write_text(f"open({str(ran)!r}, 'w')")
    (folder / "config.json").write_text('{"auto_map": {"AutoModel": "torchbayes_model.Net"}, "run": "x"}')
    monkeypatch.chdir(folder)
    assert tb.hub.load(folder, model()).members == 2
    (folder / "posterior.safetensors").write_bytes(pickle.dumps(Bomb(ran)))
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        tb.hub.load(folder, model())
    assert not ran.exists()


def test_folders_of_other_things_are_refused(posterior: Any, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"differs|shape|layout"):
        tb.hub.load(folder, model(outputs=3))
    with pytest.raises(FileNotFoundError, match=r"posterior\.safetensors"):
        tb.hub.load(tmp_path, model())
    for nowhere in ("no such folder", "./me/two", "/me/two", "a/b/c", "~/two", str(folder / "README.md")):
        with pytest.raises(FileNotFoundError, match="must be a folder, or a repository"):
            tb.hub.load(nowhere, model(), api=Hub(tmp_path))
    with pytest.raises(FileExistsError, match=r"already holds posterior\.safetensors, config\.json, README\.md"):
        tb.hub.save(posterior, folder)
    with pytest.raises(FileExistsError, match="is a file"):
        tb.hub.save(posterior, folder / "README.md")
    with pytest.raises(ValueError, match="`dataset` must name the data"):
        tb.hub.save(posterior, tmp_path / "b", evaluation=tb.evaluate(posterior, DATA))
    assert not (tmp_path / "b").exists()


def test_links_and_strangers_are_not_pushed(folder: Path, tmp_path: Path) -> None:
    api = Hub(tmp_path / "hub")
    (tmp_path / "key").write_text("secret")
    (folder / "README.md").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no README\.md"):
        tb.hub.push(folder, "me/two", api=api)
    (folder / "README.md").symlink_to(tmp_path / "key")
    with pytest.raises(ValueError, match="is a link"):
        tb.hub.push(folder, "me/two", api=api)
    assert not (tmp_path / "hub").exists()


def test_chains_and_learned_noise_are_kept(tmp_path: Path) -> None:
    targets = INPUTS[:, :1] + 0.1 * torch.randn(60, 1, generator=torch.Generator().manual_seed(1))

    def regression() -> tb.Model:
        torch.manual_seed(0)
        return tb.Model(nn.Linear(2, 1), tb.likelihoods.Gaussian(), tb.priors.Normal(1.0))

    chains: Any = tb.fit(regression(), (INPUTS, targets), tb.NUTS(chains=2, steps=120, burn_in=60), callbacks=())
    evaluation = tb.evaluate(chains, (INPUTS, targets))
    folder = tb.hub.save(chains, tmp_path / "chains", evaluation=evaluation, dataset="sums")
    actual: Any = tb.hub.load(folder, regression())
    assert torch.equal(actual.weights_MSD, chains.weights_MSD)
    stats: dict[str, Tensor] = actual.sample_stats
    assert torch.equal(stats["energy"], chains.sample_stats["energy"])
    assert header(folder)["model-index"][0]["results"][0]["task"]["type"] == "regression"


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("save", {"posterior": None}, "`posterior` must be"),
    ("save", {"folder": 3}, "`folder` must be"),
    ("save", {"evaluation": {"nll": 1.0}, "dataset": "a"}, "`evaluation` must be"),
    *(("save", {name: 3}, f"`{name}` must be text") for name in ("dataset", "license", "base_model", "text")),
    ("push", {"folder": None}, "`folder` must be"),
    ("push", {"repository": 3}, "`repository` must be text"),
    ("push", {"message": None}, "`message` must be text"),
    ("push", {"private": "yes"}, "`private` must be True or False"),
    ("load", {"source": None}, "`source` must be"),
    ("load", {"model": nn.Linear(2, 2)}, "`model` must be"),
    ("load", {"revision": 3}, "`revision` must be text"),
]


@pytest.mark.parametrize(("verb", "wrong", "message"), HOSTILE)
def test_nonsense_is_refused(posterior: Any, folder: Path, verb: str, wrong: dict[str, Any], message: str) -> None:
    good = {
        "save": {"posterior": posterior, "folder": folder.with_name("other")},
        "push": {"folder": folder, "repository": "me/two", "api": Hub(folder.with_name("hub"))},
        "load": {"source": folder, "model": model()},
    }
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(tb.hub, verb)(**{**good[verb], **wrong})
    assert not folder.with_name("other").exists()
    assert not folder.with_name("hub").exists()
