"""The heap keeps what a step frees: the system need not map the same pages again."""

import platform
import resource
from itertools import islice
from multiprocessing.connection import Connection

import pytest
import torch
from benchmarks.harness import memory_now

from tests.processes import forked
from torchbayes.native import process as heap

LAYOUTS = 40


def faults(widened: bool, number: int, pipe: Connection) -> None:
    """Tell the pages that the system maps in a step, in a process of its own.

    Its heap has a few more blocks than that of another number, so that other blocks lie at its top.
    """
    kept = [bytearray(1000 * (number + 1)) for _ in range(40 * number)]
    if widened:
        heap.widen()

    def step() -> None:
        blocks = [torch.ones(1 << 18) for _ in range(10)]  # written and freed, as the tensors of a step are
        del blocks

    for _ in range(5):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        step()
    pipe.send((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
    del kept


def faults_of(number: int, *, widened: bool) -> float:
    """The pages that the system maps in a step, with a layout of the heap."""
    own, theirs = forked().Pipe()
    process = forked().Process(target=faults, args=(widened, number, theirs))
    process.start()
    assert own.poll(240)
    process.join()
    return own.recv()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_a_step_finds_its_memory_again():
    # A small block that happens to lie at the top of the heap keeps it from being given back, in many of the layouts.
    # Were that so in all of them, there would be nothing to mend, and `widen` could go.
    # Two of those that map anew are enough.
    several = (number for number in range(LAYOUTS) if faults_of(number, widened=False) > 1000)
    mapped_anew = [*islice(several, 2)]
    assert mapped_anew
    assert all(faults_of(number, widened=True) < 100 for number in mapped_anew)


# blocks below the size that is mapped by itself, of which every other one is freed: none of these lies at the top
def given_back(pipe: Connection) -> None:
    """Tell the MiB that trimming gives back, in a process of its own."""
    heap.widen()
    blocks = [torch.ones(1 << 20) for _ in range(40)]
    del blocks[::2]
    before = memory_now()
    heap.trim()
    pipe.send(before - memory_now())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_trimming_gives_freed_memory_back():
    own, theirs = forked().Pipe()
    process = forked().Process(target=given_back, args=(theirs,))
    process.start()
    assert own.poll(240)
    process.join()
    assert 70 <= own.recv() <= 90  # MiB: 20 blocks of 4 MiB
