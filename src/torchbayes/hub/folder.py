"""Folders of posteriors, on the disk and on the Hugging Face Hub."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from torchbayes.assess.evaluation import Evaluation
from torchbayes.calls import explained
from torchbayes.checks import check_flags, check_kind, check_text, optional, seen
from torchbayes.hub.card import CardDetails, card
from torchbayes.model.model import Model
from torchbayes.native.process import full_path
from torchbayes.posteriors import load as load_posterior
from torchbayes.posteriors.files import CONFIG, POSTERIOR, read_header, write_described, write_whole
from torchbayes.posteriors.functions import Calibration
from torchbayes.posteriors.posterior import KINDS, Posterior, header_of

CARD = "README.md"
FILES = (POSTERIOR, CONFIG, CARD)
"""The files of a folder; no others are pushed."""


@explained()
def save(
    posterior: Posterior,
    folder: str | PathLike[str],
    *,
    evaluation: Evaluation | None = None,
    dataset: str = "",
    license: str = "",
    base_model: str = "",
    text: str = "",
) -> Path:
    """Write a posterior to a folder as the Hugging Face Hub holds it.

    - `posterior.safetensors`: its numbers, as `posterior.save` writes them;
    - `config.json`: kind, layout and model in words;
    - `README.md`: the model card, with tags, how to load it, the model, metrics with 95 % intervals, known problems.

    Args:
        posterior: what `fit` returns.
        folder: where to write; its name is that of the card.
        evaluation: what `evaluate` returns, for the metrics.
        dataset: name of the data of the evaluation, such as that of a repository on the hub.
        license: such as "apache-2.0".
        base_model: repository of the network, where most of its weights are not random.
        text: Markdown, the description of the card.

    Returns:
        The folder.

    Raises:
        FileExistsError: if it holds one of these files, or is a file.
        ValueError: if there is an evaluation and no name of its data.
        OSError: if it cannot be written to.
    """
    check_kind(Posterior, "what `fit` returns", posterior=posterior)
    check_kind((str, PathLike), "a path", folder=folder)
    optional(check_kind, Evaluation, "what `evaluate` returns", evaluation=evaluation)
    check_text(dataset=dataset, license=license, base_model=base_model, text=text)
    if evaluation is not None and not dataset:
        raise ValueError("`dataset` must name the data of the evaluation, for the card; got ''.")
    path = full_path(folder)
    if path.is_file():
        raise FileExistsError(f"`folder` must be a folder, new or without these files; {path} is a file.")
    taken = [name for name in FILES if (path / name).exists()]
    if taken:
        raise FileExistsError(f"{path} already holds {', '.join(taken)}. Give another folder, or move these away.")
    version = import_module("torchbayes").__version__
    details = CardDetails(path.resolve().name, version, evaluation, dataset, license, base_model, text)
    written = card(posterior, details)
    posterior.save(path / POSTERIOR)
    described = {"library_name": "torchbayes", "version": version, **header_of(posterior, {})}
    write_described(path / CONFIG, described)
    write_whole(path / CARD, written.encode())
    return path


@explained()
def push(
    folder: str | PathLike[str],
    repository: str,
    *,
    private: bool = True,
    message: str = "Upload a posterior",
    api: Any = None,
) -> str:
    """Upload a folder that `save` wrote to the Hugging Face Hub, and nothing else that lies in it.

    What a posterior says of its training rows cannot be taken back: a new repository is private by default.

    Args:
        folder: the folder.
        repository: such as "me/digits-swag"; made if there is none.
        private: whether a new repository is private.
        message: of the commit.
        api: an HfApi of huggingface_hub, with a token and endpoint of yours; the usual one if None.

    Returns:
        The address of the repository.

    Raises:
        ImportError: if huggingface_hub is not installed.
        FileNotFoundError: if one of the files is missing.
        ValueError: if the folder holds no posterior, or one of its files is a link, which could lead anywhere.
    """
    check_kind((str, PathLike), "a path", folder=folder)
    check_text(repository=repository, message=message)
    check_flags(private=private)
    path = full_path(folder)
    for name in FILES:
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} has no {name}. Write the folder by `tb.hub.save`.")
        if (path / name).is_symlink():
            raise ValueError(f"{path / name} is a link, which could lead anywhere. Put the file in its place.")
    if (kind := read_header(path / POSTERIOR).get("kind")) not in KINDS:
        raise ValueError(f"{path / POSTERIOR} holds a {kind!r}, not a posterior. Write it by `tb.hub.save`.")
    api = _api() if api is None else api
    address = api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(repo_id=repository, folder_path=path, allow_patterns=[*FILES], commit_message=message)
    return str(address)


@explained()
def load(
    source: str | PathLike[str],
    model: Model,
    *,
    revision: str | None = None,
    calibration: Calibration | Any = None,
    api: Any = None,
) -> Posterior:
    """Read a posterior from a folder, or from a repository of the Hugging Face Hub.

    `posterior.safetensors` alone is fetched and read. Nothing in it is run, whoever wrote it; see Security.

    Args:
        source: a folder; if there is none of that name, a repository such as "me/digits-swag".
        model: as for `torchbayes.load`.
        revision: branch, tag or commit of a repository; pin a commit where you do not trust its owner.
        calibration: as for `torchbayes.load`.
        api: an HfApi of huggingface_hub, with a token and endpoint of yours; the usual one if None.

    Returns:
        The posterior, on the model's device.

    Raises:
        FileNotFoundError: if there is no such folder, or it holds no posterior.
        ImportError: if `source` is no folder and huggingface_hub is not installed.
        ValueError: as `torchbayes.load` does.
    """
    check_kind((str, PathLike), "a folder, or the name of a repository", source=source)
    check_kind(Model, "the `Model` that it was fitted with", model=model)
    optional(check_text, revision=revision)
    path = full_path(source)
    if path.is_dir():
        return load_posterior(path / POSTERIOR, model, calibration=calibration)
    owner, _, name = str(source).partition("/")
    if not owner.strip(".~") or not name or "/" in name or path.exists():
        raise FileNotFoundError(f"`source` must be a folder, or a repository such as 'me/swag'; got {seen(source)}.")
    api = _api() if api is None else api
    try:
        file = api.hf_hub_download(str(source), POSTERIOR, revision=revision)
    except Exception as error:
        error.add_note(f"There is no folder {path}, so that {source} was looked for on the hub.")
        raise
    return load_posterior(file, model, calibration=calibration)


def _api() -> Any:
    try:
        return import_module("huggingface_hub").HfApi()
    except ImportError as error:
        raise ImportError('The hub needs huggingface_hub. Run: pip install "torchbayes[huggingface]"') from error
