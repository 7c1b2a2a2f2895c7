"""The output layer of a language model, cut to the rows of a few tokens.

Of an output layer W h + b with V rows only the rows of the answers are kept, so that no number is computed for another
token. The parts of an adapter of PEFT around it are cut as well: of LoRA, W h + s B A h, the K rows of B; of DoRA the K
magnitudes too. The layers themselves stay those of PyTorch and PEFT, so that their forward passes, their initialisers
and their names are the usual ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchbayes.checks import seen
from torchbayes.native.process import undisturbed
from torchbayes.native.sharding import whole as gathered


class TiedRows(nn.Module):
    """Some rows of a weight that is trained elsewhere too, as that of embeddings; they are taken in each call."""

    rows: Tensor

    def __init__(self, whole: nn.Linear, rows: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = whole.weight, whole.bias
        self.register_buffer("rows", rows, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the outputs (..., K) of hidden states (..., H)."""
        return F.linear(hidden, self.weight[self.rows], None if self.bias is None else self.bias[self.rows])


def base_of(network: nn.Module) -> Any:
    """Return the language model that PEFT has put its adapters in; a network without PEFT itself."""
    inside = getattr(type(network), "get_base_model", None)
    return network if inside is None else inside(network)


def head_of(network: nn.Module) -> tuple[str, Any]:
    """Return the name of the output layer in a causal language model, as PEFT may have wrapped it, and the layer.

    Raises TypeError if the network has none, or one that is not linear.
    """
    find = getattr(base_of(network), "get_output_embeddings", None)
    head: Any = find() if callable(find) else None
    name = next((name for name, submodule in network.named_modules() if submodule is head), None)
    if head is None or name is None:
        raise TypeError(
            f"`network` must be a causal language model, whose output layer `get_output_embeddings` returns; got "
            f"{type(network).__name__}. Load it by AutoModelForCausalLM, with or without adapters of PEFT."
        )
    linear = [submodule for submodule in head.modules() if isinstance(submodule, nn.Linear)]
    if not linear or not isinstance(getattr(head, "out_features", None), int):
        raise TypeError(
            f"the output layer `{name}` must be linear, so that it can be cut to the answers; got {_kind(head)}."
        )
    if any(not submodule.weight.is_floating_point() for submodule in linear):
        raise TypeError(
            f"the weights of the output layer `{name}` are quantised to {linear[0].weight.dtype}, and cannot be cut to "
            f"the answers. Load the network with its output layer left as it is (`llm_int8_skip_modules`)."
        )
    return name, head


def cut(network: nn.Module, rows: Tensor) -> None:
    """Cut the output layer of a network, in place, to the rows (K,) of the answers' tokens."""
    name, head = head_of(network)
    elsewhere = {
        id(parameter)
        for other, parameter in network.named_parameters(remove_duplicate=False)
        if parameter.requires_grad and not other.startswith(f"{name}.")
    }
    _replace(network, name, _cut(head, rows, head.out_features, elsewhere))
    for submodule in network.modules():  # the initialisers of Hugging Face would tie the cut weights again
        for keys in ("_tied_weights_keys", "all_tied_weights_keys"):
            if getattr(submodule, keys, None):
                setattr(submodule, keys, {})


def _cut(head: nn.Module, rows: Tensor, size: int, elsewhere: set[int]) -> nn.Module:
    """Return an output layer with K of its V = `size` rows, wherever it holds that many; it is changed in place.

    `elsewhere` are the identities of trained parameters that other layers use.
    """
    if isinstance(head, nn.Linear):
        if head.out_features != size:
            return head
        return TiedRows(head, rows) if id(head.weight) in elsewhere else _linear(head, rows)
    for name, parameter in [*head.named_parameters(recurse=False)]:
        if parameter.ndim == 1 and len(parameter) == size:
            setattr(head, name, _some(parameter, rows))
    for name, submodule in [*head.named_children()]:
        setattr(head, name, _cut(submodule, rows, size, elsewhere))
    return head


def _linear(whole: nn.Linear, rows: Tensor) -> nn.Linear:
    """Return a linear layer with some of the rows of another one, as trainable as its."""
    cut = nn.Linear(whole.in_features, len(rows), bias=whole.bias is not None, device="meta")
    cut.weight = _some(whole.weight, rows)
    if whole.bias is not None:
        cut.bias = _some(whole.bias, rows)
    return cut.train(whole.training)


def _some(whole: Tensor, rows: Tensor) -> nn.Parameter:
    return nn.Parameter(gathered(whole.detach())[rows.to(whole.device)], requires_grad=whole.requires_grad)


def _replace(network: nn.Module, name: str, submodule: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(network.get_submodule(owner), last, submodule)


def _kind(head: nn.Module) -> str:
    return f"an object of type {type(head).__name__}"


@undisturbed
def index_of(answers: Any, size: int) -> Tensor:
    """Return tokens of answers as a tensor (K,) of different whole numbers below the number of tokens.

    Raises ValueError if they are not, TypeError if they are no numbers at all.
    """
    try:
        rows = torch.as_tensor(answers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"`answers` must be the numbers of tokens, (K,); got {seen(answers)}.") from error
    if rows.ndim != 1 or len(rows) < 2 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise ValueError(
            f"`answers` must be the numbers of two tokens or more, (K,); got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    wrong = [token for token in rows.tolist() if not 0 <= token < size]
    if wrong:
        raise ValueError(
            f"`answers` must be tokens from 0 to {size - 1}, the rows of the output layer; got {wrong[0]}."
        )
    if len(set(rows.tolist())) < len(rows):
        raise ValueError(f"`answers` must be different tokens; got {rows.tolist()}.")
    return rows.long()
