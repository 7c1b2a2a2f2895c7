"""Ranks: the processes of one fit, a grid that splits the data along one side and the members along the other.

Every process runs the same program, as torchrun starts it. With P data ranks, each holds its share of the rows, and

    log p(w, D) = Σ_p log p(D_p | w) + log p(w)

is an all-reduce of values and gradients. Ranks that share the data of a member hold the same weights at all times.
Ranks that share the members work on different rows of the M axis and communicate only to write.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from torchbayes.checks import check_counts, check_flags, check_positive, optional
from torchbayes.native.processes import answered


@dataclass(frozen=True)
class Ranks:
    """A grid of processes, seen from one of them.

    Attributes:
        data: P, number of shares the data are split into.
        chains: number of shares the M members or chains are split into.
        data_rank: number of this process's share of the data.
        chain_rank: number of this process's share of the members.
        data_group: the processes that hold the same members; None if there is one.
        chain_group: the processes that hold the same rows; None if there is one.
        opened: whether this object started `torch.distributed`, and so ends it.
    """

    data: int = 1
    chains: int = 1
    data_rank: int = 0
    chain_rank: int = 0
    data_group: Any = None
    chain_group: Any = None
    opened: bool = False

    def __post_init__(self) -> None:
        check_counts(data=self.data, chains=self.chains)
        check_counts(least=0, data_rank=self.data_rank, chain_rank=self.chain_rank)
        check_flags(opened=self.opened)
        for name, rank, shares in (("data", self.data_rank, self.data), ("chain", self.chain_rank, self.chains)):
            if rank >= shares:
                raise ValueError(f"`{name}_rank` must be less than the number of shares, {shares}; got {rank}.")

    @classmethod
    def grid(
        cls,
        data: int | None = None,
        chains: int | None = None,
        *,
        members: int = 1,
        device: str | None = None,
        timeout: float = 3600.0,
    ) -> Ranks:
        """Join the processes that torchrun started, or those of an existing process group.

        It communicates by gloo on CPUs and by NCCL on GPUs, where process number LOCAL_RANK takes GPU LOCAL_RANK.

        Args:
            data: shares of the data; the remaining factor of the number of processes if None.
            chains: shares of the members; if both are None, as many as divide `members`, since members need no
                communication.
            members: M, for that choice.
            device: "cpu" or "cuda"; if None, a GPU if there is one.
            timeout: seconds to wait for a rank that does not respond; one that died is noticed at once.

        Returns:
            The grid. Use it in a `with`, which ends the process group.

        Raises:
            ValueError: if the shares do not multiply to the number of processes, or are not positive.
        """
        optional(check_counts, data=data, chains=chains)
        check_positive(timeout=timeout)
        kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
        opened = not dist.is_initialized()
        if opened and int(os.environ.get("WORLD_SIZE", "1")) == 1:
            if (data or 1) * (chains or 1) == 1:
                return cls()
            raise ValueError(
                f"there is one process, and {data or 1} times {chains or 1} were asked for. Start the program with "
                f"torchrun --nproc-per-node {(data or 1) * (chains or 1)}."
            )
        if kind == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if opened:
            _open("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo", timedelta(0, timeout))
        world = dist.get_world_size()
        shares = _shares(world, data, chains, members=members)
        if shares[0] * shares[1] != world:
            if opened:
                dist.destroy_process_group()
            raise ValueError(
                f"`data` times `chains` must be the number of processes, {world}; got {shares[0]} times {shares[1]}."
            )
        from torch.distributed.device_mesh import init_device_mesh  # slow to import

        mesh = init_device_mesh(kind, shares, mesh_dim_names=("data", "chains"))
        groups = [mesh.get_group(name) if size > 1 else None for name, size in zip(("data", "chains"), shares)]  # noqa: B905
        return cls(*shares, *(mesh.get_local_rank(name) for name in ("data", "chains")), *groups, opened=opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process group, if it was started here; ranks that wait for this one then stop with an error."""
        if self.opened and dist.is_initialized():
            dist.destroy_process_group()

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.data * self.chains

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.data_rank == self.chain_rank == 0

    def rows(self, count: int) -> slice:
        """Return this process's share of `count` rows.

        Raises:
            ValueError: if there are fewer rows than shares.
        """
        if count < self.data:
            raise ValueError(f"{count} rows cannot be split over {self.data} ranks. Use at most {count} for the data.")
        return _share(count, self.data, self.data_rank)

    def members(self, count: int) -> slice:
        """Return this process's share of `count` members.

        Raises:
            ValueError: if there are fewer members than shares.
        """
        if count < self.chains:
            raise ValueError(
                f"{count} members cannot be spread over {self.chains} ranks. Use at most {count} for them, and split "
                f"the data over the others."
            )
        return _share(count, self.chains, self.chain_rank)

    def sum_(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums, the same on each rank, over the ranks that share the data of these members."""
        if self.data == 1:
            return
        with answered():
            works = [dist.all_reduce(tensor, group=self.data_group, async_op=True) for tensor in tensors]
            for work in works:
                assert work is not None
                work.wait()

    def gather(self, share: Tensor, count: int) -> Tensor:
        """Return the rows of all `count` members, (M, ...), from each rank's share of them."""
        if self.chains == 1:
            return share
        bounds = [_share(count, self.chains, rank) for rank in range(self.chains)]
        most = max(b.stop - b.start for b in bounds)
        padded = share.new_zeros(most, *share.shape[1:])
        padded[: len(share)] = share
        parts = [torch.empty_like(padded) for _ in bounds]
        with answered():
            dist.all_gather(parts, padded, group=self.chain_group)
        return torch.cat([gathered[: b.stop - b.start] for gathered, b in zip(parts, bounds, strict=True)])

    def agree(self, choice: bool) -> bool:
        """Return the choice of the first process on all of them, after waiting for it."""
        if self.size == 1:
            return choice
        answer = torch.tensor(int(choice))
        with answered():
            dist.broadcast(answer, 0)
        return bool(answer)

    def wait(self) -> None:
        """Wait until every process has come here."""
        if self.size > 1:
            with answered():
                # This runs on the CPU; dist.barrier would choose a GPU itself.
                dist.all_reduce(torch.zeros(1))


def chunk_of(ranks: Ranks, count: int, size: int) -> int:
    """Return the least chunk size, `size` or more, with which each rank's share of `count` rows has as many chunks.

    Processes that hold parts of one network must call it equally often.
    """
    least, most = count // ranks.data, -(-count // ranks.data)
    while -(-least // size) != -(-most // size):
        size += 1
    return size


def check_equal(ranks: Ranks, tensors: Sequence[Tensor]) -> None:
    """Raise a ValueError if the ranks that share data no longer hold the same numbers.

    They take the same decisions only as long as their arithmetic gives the same values.
    """
    if ranks.data == 1:
        return
    totals = torch.stack([tensor.sum(dtype=torch.float64) for tensor in tensors])
    bounds = torch.stack([totals, -totals])
    with answered():
        dist.all_reduce(bounds, dist.ReduceOp.MAX, group=ranks.data_group)
    if not torch.equal(bounds[0], -bounds[1]):
        raise ValueError(
            "the ranks that share the data no longer hold the same weights: their arithmetic differs. Run them on "
            "machines of one kind, with the same number of threads and the same plan."
        )


def _share(count: int, shares: int, rank: int) -> slice:
    """Return one of `shares` slices of `count` items, whose lengths differ by at most one."""
    return slice(count * rank // shares, count * (rank + 1) // shares)


def _shares(world: int, data: int | None, chains: int | None, *, members: int) -> tuple[int, int]:
    if chains is None:
        chains = math.gcd(members, world) if data is None else world // data
    return (data or world // chains), chains


_MET: list[tuple[Any, int, int]] = []  # the store of these processes, this one's number, and how many there are
_OPENED = itertools.count()


def _open(backend: str, timeout: timedelta) -> None:
    """Start a process group with keys of its own, because a second would find the addresses of the first."""
    from torch.distributed.rendezvous import rendezvous  # absent from builds of PyTorch without processes

    if not _MET:
        _MET.append(next(rendezvous("env://", timeout=timeout)))
    store, rank, world = _MET[0]
    store.set_timeout(timeout)
    keys = dist.PrefixStore(f"torchbayes {next(_OPENED)}", store)  # type: ignore[attr-defined]  # PyTorch's own list
    dist.init_process_group(backend, store=keys, rank=rank, world_size=world, timeout=timeout)
