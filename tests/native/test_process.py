"""Settings of the process are changed while any thread is inside, and as found after the last."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import torchbayes as tb
from tests.oracles import normal
from tests.processes import forked
from torchbayes.native.process import WhileAny, full_path, plain_attention
from torchbayes.posteriors.files import write_whole


def test_the_last_one_out_puts_back_what_was_before() -> None:
    setting = ["user's"]

    def change() -> Any:
        before = setting[0]
        setting[0] = "ours"
        return lambda: setting.__setitem__(0, before)

    changed = WhileAny(change)
    one, other = changed(), changed()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert setting == ["ours"]
    other.__exit__(None, None, None)
    assert setting == ["user's"]


@pytest.mark.parametrize(("masked", "causal"), [(None, False), (None, True), ("bool", False), ("float", False)])
def test_plain_attention_is_that_of_the_kernel_of_plain_operations(masked: str | None, causal: bool) -> None:
    query, key, value = normal(3, 2, 4, 5, 6)
    mask = None if masked is None else normal(5, 5, seed=3) > 0 if masked == "bool" else normal(5, 5, seed=3)
    mask = mask.fill_diagonal_(True) if masked == "bool" and mask is not None else mask
    with sdpa_kernel(SDPBackend.MATH):
        wanted = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
    with plain_attention():
        actual = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        assert torch.backends.cuda.flash_sdp_enabled()  # nothing of the process has changed
    assert torch.equal(actual, wanted)


def test_encoders_can_be_differentiated_twice() -> None:
    layer, inputs = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).double().eval(), normal(2, 3, 4)
    inputs.requires_grad_()
    wanted = layer(inputs)
    with plain_attention():
        outputs = layer(inputs)
        (slope,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
        (curved,) = torch.autograd.grad(slope.square().sum(), inputs)
    assert torch.allclose(outputs, wanted, atol=1e-12)
    assert bool(curved.isfinite().all())


def test_files_are_as_readable_as_the_umask_says_and_it_stays(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = write_whole(tmp_path / "a.txt", b"1")
        assert path.stat().st_mode & 0o777 == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_paths_are_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert full_path("~/x") == full_path("x") == full_path(tmp_path / "x") == tmp_path / "x"
    assert full_path("~nobody-of-this-name/x").is_absolute()


def fork() -> None:
    """In a process of its own: a child predicts after a team of threads of its parent has started."""
    inputs = torch.randn(300, 3)
    posterior = tb.Point(tb.Model(nn.Linear(3, 1), tb.likelihoods.Gaussian()), torch.randn(20, 4))
    torch.set_num_threads(2)
    torch.erf(torch.randn(100_000))  # starts a team
    expected = tb.predict(posterior, inputs)
    child = os.fork()
    if not child:
        signal.alarm(20)
        torch.erf(torch.randn(100_000))
        same = torch.allclose(tb.predict(posterior, inputs).quantile(0.1), expected.quantile(0.1), atol=1e-5)
        os._exit(0 if same else 1)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_waits_for_no_threads_of_its_parent() -> None:
    process = forked().Process(target=fork)
    process.start()
    process.join(60)
    assert process.exitcode == 0
