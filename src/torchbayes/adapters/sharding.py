"""A frozen base that is split over processes, each of which holds a part of every large layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from torchbayes.checks import check_kind, optional, seen
from torchbayes.native.sharding import gather_in_calls

_Network = TypeVar("_Network", bound=nn.Module)


def shard(network: _Network, *, mesh: Any = None) -> _Network:
    r"""Split the frozen weights of a network over processes, in place.

    Of each matrix W (n, ...) that is not trained, process r of R keeps about n/R rows, as a DTensor:

        W = [W_0; W_1; ...; W_{R-1}].

    A layer gathers its W when it is called and in the backward pass, and drops it after that. So a process holds about
    1/R of the base and one layer, in the place of the whole base. What is trained stays whole, and so do vectors. All
    processes must hold the same network before, and call the result in the same order: `fit` does so, with
    `Ranks.grid(chains=1)` or on the same rows, and so do `predict` and `evaluate` on the same rows.

    Args:
        network: the network, with `requires_grad=False` for what is to be split.
        mesh: a DeviceMesh of one dimension, of the processes to split over; all processes if None, and their GPUs if
            they communicate by NCCL. The shards are moved to its devices.

    Returns:
        The same network.

    Raises:
        TypeError: if an argument is of another kind.
        ValueError: if there is no process group, the mesh has more than one dimension, or there is nothing to split.
    """
    check_kind(nn.Module, "an nn.Module", network=network)
    if not dist.is_initialized():
        raise ValueError(
            "there is no process group over which to split the network. Start the program with torchrun, and call "
            "`Ranks.grid()` first."
        )
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # slow to import
    from torch.distributed.tensor import Shard, distribute_tensor

    optional(check_kind, DeviceMesh, "a DeviceMesh", mesh=mesh)
    if mesh is None:
        kind = "cuda" if "nccl" in dist.get_backend_config() else "cpu"
        mesh = init_device_mesh(kind, (dist.get_world_size(),))
    if mesh.ndim != 1:
        raise ValueError(f"`mesh` must have one dimension; got {mesh.ndim}. Take one of them, such as `mesh['data']`.")
    split = dict[int, nn.Parameter]()
    for submodule, name, tensor in _frozen(network):
        if id(tensor) not in split:  # tied layers share one
            shards = distribute_tensor(tensor.detach(), mesh, [Shard(0)], src_data_rank=None)
            split[id(tensor)] = nn.Parameter(shards, requires_grad=False)
        submodule._parameters[name] = split[id(tensor)]
    if not split:
        raise ValueError(
            f"`network` has no frozen matrix to split; got {seen(network)}. Freeze the base first, by "
            f"`requires_grad_(False)`, as PEFT does."
        )
    gather_in_calls(network)
    return network


def _frozen(network: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield the frozen matrices of layers, as (layer, name, matrix), unless another layer reads them without a call.

    Attention of PyTorch reads the weights of its output layer, and DoRA those of its base layer.
    """
    read = {id(submodule.out_proj) for submodule in network.modules() if isinstance(submodule, nn.MultiheadAttention)}
    adapted: list[Any] = [layer for layer in network.modules() if getattr(layer, "lora_magnitude_vector", None)]
    read |= {id(inner) for layer in adapted for inner in layer.base_layer.modules()}
    for submodule in network.modules():
        for name, tensor in submodule._parameters.items() if id(submodule) not in read else ():
            if tensor is None or type(tensor) not in {Tensor, nn.Parameter}:  # quantised, or split already
                continue
            if tensor.ndim > 1 and not tensor.requires_grad:
                yield submodule, name, tensor
