"""The adapter on a base: a fresh one of PEFT, one that was trained before, and the way back to PEFT's files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchbayes.adapters.heads import head_of
from torchbayes.lora.base import Base
from torchbayes.lora.settings import Settings
from torchbayes.model.initialisation import copied
from torchbayes.networks import scale_rows
from torchbayes.networks.adapters import ScaledRows

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_QUERIES_VALUES = ("q_proj", "v_proj")
_ALL = "all-linear"
_STARTS = ("gaussian", "eva")  # of a LoRA, which leave the base as it is


def fresh(base: Base, settings: Settings) -> Any:
    """Return the base with a LoRA that has not been trained, on the layers that settings name.

    Raises ValueError if the base has no such layers, or the rank is higher than a layer is wide.
    """
    import peft

    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=2 * settings.rank if settings.alpha is None else settings.alpha,  # type: ignore[arg-type]
        target_modules=targets_of(base.network, settings.targets),
        task_type="CAUSAL_LM",
    )
    pretrained: Any = base.network
    try:
        with _quiet():
            return peft.get_peft_model(pretrained, config).eval()
    except ValueError as error:
        raise ValueError(
            f"no LoRA can be put on {base.name}: {' '.join(str(error).split())[:300]} Name other `targets`, such as "
            f"{_ALL}."
        ) from error


def targets_of(network: nn.Module, named: tuple[str, ...]) -> list[str] | str:
    """Return the layers of an adapter as PEFT takes them: those named, else queries, values and the output layer.

    Where the base has no layers called as queries and values, those that PEFT knows of its architecture take their
    place, and all linear layers if it knows none.
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    if named:
        return _ALL if named == (_ALL,) else list(named)
    leaves = {name.rpartition(".")[2] for name, _ in network.named_modules()}
    kind = getattr(getattr(network, "config", None), "model_type", "")
    layers = _QUERIES_VALUES if set(_QUERIES_VALUES) <= leaves else KNOWN.get(kind, ())
    head, _ = head_of(network)
    return [*layers, head.rpartition(".")[2]] if layers else _ALL


def trained(base: Base, folder: str) -> Any:
    """Return the base with the LoRA of a folder, as PEFT saved it.

    Raises FileNotFoundError if there is no such folder, ValueError if it holds no LoRA in safetensors or one that
    belongs to another base.
    """
    import peft

    config, tensors = _read(Path(folder))
    settings = peft.LoraConfig.from_pretrained(folder)
    settings.inference_mode = False
    pretrained: Any = base.network
    try:
        with _quiet():
            network = peft.PeftModelForCausalLM(pretrained, settings).eval()
            expected = peft.get_peft_model_state_dict(network, save_embedding_layers=False)
    except ValueError as error:
        raise ValueError(_of_another(folder, config, base, " ".join(str(error).split())[:200])) from error
    for name, tensor in expected.items():
        if name not in tensors:
            raise ValueError(_of_another(folder, config, base, f"it has no `{name}`, which the base would take"))
        if tensors[name].shape != tensor.shape:
            shapes = tuple(tensors[name].shape), tuple(tensor.shape)
            raise ValueError(_of_another(folder, config, base, f"`{name}` has shape {shapes[0]}, not {shapes[1]}"))
    more = [name for name in tensors if name not in expected and "lora" in name]
    if more:
        raise ValueError(_of_another(folder, config, base, f"the base has no place for `{more[0]}`"))
    with _quiet():
        peft.set_peft_model_state_dict(network, tensors)
    return network


def _read(folder: Path) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """Return the configuration and the tensors of an adapter's folder, checked to be a plain LoRA."""
    from safetensors.torch import load_file

    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}. Name that of an adapter, as `save_pretrained` wrote it.")
    if not (folder / CONFIG).is_file():
        base = (folder / "config.json").is_file()
        said = "it is a whole model, which may be a base" if base else f"it has no {CONFIG}"
        raise ValueError(f"{folder} holds no adapter of PEFT: {said}.")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = config.get("peft_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / CONFIG} is damaged: {error}. Restore it.") from error
    if kind != "LORA" or config.get("use_dora"):
        said = "a DoRA, whose magnitudes have no normal prior around 0" if kind == "LORA" else f"of the kind {kind}"
        raise ValueError(f"the adapter in {folder} must be a LoRA; it is {said}. Train one by peft.LoraConfig(…).")
    if config.get("megatron_config"):  # with which PEFT imports a module that the file names
        raise ValueError(f"{folder / CONFIG} names code, `megatron_core`, which is not run. Train a plain LoRA.")
    if isinstance(start := config.get("init_lora_weights"), str) and start not in _STARTS:
        raise ValueError(
            f"the adapter in {folder} began as {start}, which changes the weights of the base. Convert it to a plain "
            f"LoRA by PEFT (`path_initial_model_for_weight_conversion`)."
        )
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        had = "only adapter_model.bin, a pickle, which can run code" if pickled else "none"
        raise ValueError(f"{folder} must have its weights in {WEIGHTS}; it has {had}. Save it again by PEFT.")
    try:
        return config, load_file(folder / WEIGHTS)
    except Exception as error:  # the library of safetensors has errors of its own
        raise ValueError(f"{folder / WEIGHTS} is damaged: {error}. Restore it.") from error


def _of_another(folder: str, config: Mapping[str, Any], base: Base, said: str) -> str:
    trained_on = config.get("base_model_name_or_path") or "a base that it does not name"
    return f"the adapter in {folder} does not belong to the base {base.name}: {said}. It was trained on {trained_on}."


def with_scales(network: Any) -> Any:
    """Return a copy of a network whose adapters have a scale for each row of A; all but the adapters is shared."""
    adapted = {id(p) for name, p in network.named_parameters() if "lora_" in name}
    tensors = [*network.parameters(), *network.buffers()]
    return scale_rows(copied(network, {id(each): each for each in tensors if id(each) not in adapted}))


def save(network: Any, folder: Path) -> Path:
    """Write the adapter of a network as PEFT does, as a plain LoRA, and return the folder."""
    with _quiet():
        _without_scales(network).save_pretrained(folder, save_embedding_layers=False)
    return folder


def _without_scales(network: Any) -> Any:
    """Return a network in which A takes the place of its scaled rows, in a copy where there are any."""
    if not any(isinstance(module, ScaledRows) for module in network.modules()):
        return network
    network = copied(network, {id(each): each for each in (*network.parameters(), *network.buffers())})
    for module in [*network.modules()]:
        for name, rows in [*module.named_children()]:
            if isinstance(rows, ScaledRows):
                plain = nn.Linear(rows.directions.shape[1], rows.directions.shape[0], bias=False, device="meta")
                plain.weight = nn.Parameter(rows.weight.detach())
                module.add_module(name, plain)
    return network


def scales_of(answers: nn.Module, reach: float) -> dict[str, float]:
    """Return the standard deviation of the normal prior of each factor of a network's adapters, by its name.

    With a² = τ / (s √(r I)) for both factors each output of s B A x has the standard deviation τ at inputs x of length
    √I, as that of ΔW x is s √r a² ‖x‖. An embedding takes one row of its factor, so that I is 1.
    """
    scales: dict[str, float] = {}
    for path, layer in answers.named_modules():
        factors = getattr(layer, "scaling", None)  # layers of attention have a number of this name
        for adapter, factor in factors.items() if isinstance(factors, dict) else ():
            for kind, end in (("lora", ".weight"), ("lora_embedding", "")):
                held: Any = getattr(layer, f"{kind}_A", {})
                if adapter not in held:
                    continue
                rank, inputs = (held[adapter].weight if end else held[adapter]).shape
                scale = (reach / (factor * (rank * (inputs if end else 1)) ** 0.5)) ** 0.5
                scales |= {f"{path}.{kind}_{each}.{adapter}{end}": scale for each in "AB"}
    return scales


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what PEFT and transformers warn of where it concerns nobody here: ties and orders of axes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield
