"""The base of an adapter: a causal language model of Hugging Face and its tokenizer, from a folder or the hub.

Weights are read from safetensors alone, and no code of a folder or the hub is run unless the user trusts it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from torchbayes.catalogue.problem import place_of
from torchbayes.lora.fingerprint import fingerprint
from torchbayes.lora.memory import check_fits
from torchbayes.lora.settings import Settings

_LONGEST = 200  # letters of another library's message


class Base(NamedTuple):
    """A frozen language model."""

    name: str  # folder, or name on the hub
    network: nn.Module
    tokenizer: Any
    fingerprint: Mapping[str, Any]


def check_libraries() -> None:
    """Raise ImportError if the extra `lora` is not installed."""
    missing = [name for name in ("transformers", "peft") if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"adapters of language models need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} "
            f"not installed: pip install 'torchbayes[lora]'."
        )


class Opened(NamedTuple):
    """A base whose weights have not been read."""

    name: str
    device: str
    config: Any
    tokenizer: Any
    how: Mapping[str, Any]  # arguments by which Hugging Face reads


def open_base(settings: Settings, *, trust: bool = False) -> Opened:
    """Read configuration and tokenizer of a base.

    Raises FileNotFoundError for no folder, ValueError for one that is no base or has no tokenizer, and ImportError
    where a library is missing.
    """
    check_libraries()
    import transformers

    if settings.load_in_4bit and find_spec("bitsandbytes") is None:
        raise ImportError(
            "`load_in_4bit` needs bitsandbytes, which is not installed: pip install bitsandbytes, or take "
            "dtype=bfloat16."
        )
    name, device = settings.base, place_of(settings.device)
    how = {"local_files_only": _is_folder(name), "trust_remote_code": trust}
    with _reading(name, "configuration", trust=trust):
        config = transformers.AutoConfig.from_pretrained(name, **how)
    with _reading(name, "tokenizer", trust=trust, advice="Save one there: tokenizer.save_pretrained(folder)."):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **how)
    return Opened(name, device, config, tokenizer, how)


def load_base(opened: Opened, settings: Settings, *, length: int = 1, members: int = 1) -> Base:
    """Read the weights of a base, after a check that they fit in memory with prompts of a length and members.

    Raises ValueError if they do not, or there are none that can be read.
    """
    import transformers

    name, device, trust = opened.name, opened.device, opened.how["trust_remote_code"]
    with _reading(name, "causal language model", trust=trust), torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(opened.config, trust_remote_code=trust)
    check_fits(empty, settings, device, length=length, members=members)
    read: Any = transformers.AutoModelForCausalLM.from_pretrained
    placed = {"device_map": {"": device}} if settings.load_in_4bit else {}
    with _reading(name, "weights in safetensors", trust=trust):
        network = read(name, config=opened.config, use_safetensors=True, **placed, **_precision(settings), **opened.how)
    network = network.eval() if settings.load_in_4bit else network.to(device).eval()
    return Base(name, network.requires_grad_(False), opened.tokenizer, fingerprint(network))


def _precision(settings: Settings) -> dict[str, Any]:
    """Return the arguments by which Hugging Face loads weights in a precision."""
    if not settings.load_in_4bit:
        return {"dtype": "auto" if settings.dtype == "auto" else getattr(torch, settings.dtype)}
    import transformers

    computed = torch.bfloat16 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    quantised = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=computed
    )
    return {"quantization_config": quantised, "dtype": computed}


def _is_folder(name: str) -> bool:
    """Return whether a base is a folder of this machine, checked for what it must hold; else it is one of the hub."""
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists():
            raise ValueError(f"the base {name} is a file. Name the folder with its config.json and weights.")
        if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise FileNotFoundError(f"there is no folder {name}. Name that of a base, or one of the hub as owner/name.")
        return False
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            raise ValueError(f"{name} is an adapter, not a base. Name the base it was trained on, and it as `adapter`.")
        raise ValueError(f"{name} holds no base: it has no config.json. Name a folder that `save_pretrained` wrote.")
    if not any(folder.glob("*.safetensors")):
        others = [path.name for path in folder.glob("*.bin")]
        had = f"only {others[0]}, a pickle, which can run code" if others else "none"
        raise ValueError(
            f"{name} must have its weights in safetensors; it has {had}. Save it again by `save_pretrained`."
        )
    return True


@contextmanager
def _reading(name: str, kind: str, *, trust: bool, advice: str = "") -> Iterator[None]:
    """Turn what Hugging Face raises while it reads a base into one sentence of this library, a ValueError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError) as error:
        said = " ".join(str(error).split())
        if "trust_remote_code" in said and not trust:
            raise ValueError(
                f"the base {name} comes with code of its own, which runs only if you trust it. Read it, then add "
                f"--trust (`trust=True`)."
            ) from error
        raise ValueError(
            f"no {kind} can be read from the base {name}. {advice}{' ' if advice else ''}"
            f"({type(error).__name__}: {said[:_LONGEST].rstrip('. ')}.)"
        ) from error
