"""The heap keeps what a step frees: the system need not map the same pages again."""

import os
import platform
import subprocess
import sys

import pytest

# ten blocks that are written and freed, again and again, as the tensors of a step are
STEPS = """
import resource, torch
from torchbayes.native.heap import widen
{widen}
def step():
    blocks = [torch.ones(1 << 18) for _ in range(10)]
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


def faults(widen: str) -> float:
    """Pages that the system maps in a step, in a process of its own with the allocator's usual settings."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", STEPS.format(widen=widen)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=usual).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_a_step_finds_its_memory_again():
    assert all(faults("widen()") < 100 for _ in range(4))
    # A small block that happens to lie at the top of the heap keeps it from being given back, in up to half of the
    # processes. Were that so in all of twelve, there would be nothing to mend, and `widen` could go.
    assert any(faults("") > 1000 for _ in range(12))


# blocks below the size that is mapped by itself, of which every other one is freed: none of these lies at the top
HOLES = """
import torch
from benchmarks.harness import memory_now
from torchbayes.native.heap import trim, widen
widen()
blocks = [torch.ones(1 << 20) for _ in range(40)]
del blocks[::2]
before = memory_now()
trim()
print(before - memory_now())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_trimming_gives_freed_memory_back():
    command = [sys.executable, "-c", HOLES]
    freed = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert 70 <= freed <= 90  # MiB: 20 blocks of 4 MiB
