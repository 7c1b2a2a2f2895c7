"""Files of posteriors: what is written, which damage is distinguished, and that nothing half written stays."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

import torchbayes as tb
from tests.laws.cases import POSTERIORS, assert_same_tensors, made, model_of, normal, rows_of
from torchbayes.posteriors.files import FORMAT, read_tensors, sealed, unsealed, write_tensors


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return POSTERIORS["gaussian_low_rank"](model_of(), 2).save(tmp_path / "run" / "q.safetensors")


def test_tensors_and_header_come_back(tmp_path: Path) -> None:
    tensors = {
        "a": normal(3, 4),
        "half": normal(5).half(),
        "complex": torch.complex(normal(2, 3), normal(2, 3, seed=1)),
        "conjugate": torch.complex(normal(3), normal(3, seed=1)).conj(),
        "complex number": torch.tensor(1 - 2j, dtype=torch.complex128),
        "complex64": torch.complex(normal(4), normal(4, seed=1)).to(torch.complex64),
        "whole": torch.arange(6).view(2, 3),
        "scalar": torch.tensor(2.5),
        "strided": normal(4, 4).T[::2],
        "empty": torch.empty(0, 3),
    }
    path = write_tensors(tmp_path / "x.safetensors", tensors, {"kind": "test", "numbers": [1, 2.5, None]})
    actual, header = read_tensors(path)
    assert_same_tensors(actual, tensors)
    assert all(actual[n].dtype == t.dtype for n, t in tensors.items())
    assert header == {"format": FORMAT, "kind": "test", "numbers": [1, 2.5, None]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_tensors_that_share_memory_come_back_each_by_itself(tmp_path: Path) -> None:
    whole = normal(3, 4)
    tensors = {"whole": whole, "row": whole[1], "again": whole}
    assert_same_tensors(read_tensors(write_tensors(tmp_path / "x.safetensors", tensors, {}))[0], tensors)


def test_tensors_begin_where_those_of_torch_do_unless_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: normal(3) for name in "abcdef"}  # 24 bytes each, without gaps between them
    path = write_tensors(tmp_path / "x.safetensors", tensors, {})
    assert {t.data_ptr() % 64 for t in read_tensors(path)[0].values()} == {0}
    monkeypatch.setattr("torchbayes.posteriors.files._MAPPED", 23)
    assert len({t.data_ptr() % 64 for t in read_tensors(path)[0].values()}) > 1


def test_overwriting_replaces_whole(saved: Path) -> None:
    model = model_of()
    other = POSTERIORS["point"](model, 3)
    other.save(saved)
    assert_same_tensors(tb.load(saved, model).tensors(), other.tensors())
    assert [p.name for p in saved.parent.iterdir()] == ["q.safetensors"]


@pytest.mark.parametrize("exception", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    saved: Path, exception: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def fail(tensors: Any, path: str, **_: Any) -> None:
        Path(path).write_bytes(b"half")
        raise exception

    monkeypatch.setattr("torchbayes.posteriors.files.save_file", fail)
    with pytest.raises(type(exception)):
        POSTERIORS["point"](model_of(), 1).save(saved)
    assert saved.read_bytes() == before
    with pytest.raises(type(exception)):
        POSTERIORS["point"](model_of(), 1).save(saved.with_name("new.safetensors"))
    assert [p.name for p in saved.parent.iterdir()] == ["q.safetensors"]
    torch.testing.assert_close(
        tb.load(saved, model_of()).sample(2), POSTERIORS["gaussian_low_rank"](model_of(), 2).sample(2)
    )


@pytest.mark.parametrize("error", [SafetensorError("I/O error: No space left"), OSError(28, "No space left")])
def test_a_full_disk_is_said_with_the_name_of_the_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("torchbayes.posteriors.files.save_file", fail)
    before = saved.read_bytes()
    with pytest.raises(OSError, match=r"q\.safetensors could not be written \(.*No space left.*\); what was there"):
        write_tensors(saved, {"a": normal(2)}, {})
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*nothing\.safetensors"):
        tb.load(tmp_path / "nothing.safetensors", model_of())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_damaged(saved: Path, share: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=r"is damaged or not a safetensors file.*Restore it or fit again"):
        tb.load(saved, model_of())


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_damaged(saved: Path, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    saved.write_bytes(bytes(torch.randint(0, 256, (3000,), generator=source).tolist()))
    with pytest.raises(ValueError, match="is damaged or not a safetensors file"):
        tb.load(saved, model_of())


@pytest.mark.parametrize("apart", [3, pytest.param(1, marks=pytest.mark.study)])  # names and numbers are longer
def test_one_wrong_byte_in_the_header_is_said_or_harmless(saved: Path, apart: int) -> None:
    """Every single-byte change of the header gives a ValueError that names the file, or the same posterior."""
    whole, model = saved.read_bytes(), model_of()
    expected = tb.load(saved, model).tensors()
    length = int.from_bytes(whole[:8], "little")
    places, clear, same = range(0, 8 + length, apart), 0, 0
    for position in places:
        saved.write_bytes(whole[:position] + b"~" + whole[position + 1 :])
        try:
            actual = tb.load(saved, model)
        except ValueError as error:
            clear += str(saved) in str(error)
        else:
            assert_same_tensors(actual.tensors(), expected)
            same += 1
    assert clear + same == len(places)
    assert clear > 0.8 * len(places)


def write_header(path: Path, **changes: Any) -> None:
    """Rewrite the file with another header; None removes an entry."""
    with safe_open(path, framework="pt") as file:
        header = unsealed(file.metadata()["torchbayes"])
        tensors = {name: file.get_tensor(name) for name in header["tensors"]}
    header = {k: v for k, v in {**header, **changes}.items() if v is not None}
    save_file(tensors, path, metadata={"torchbayes": json.dumps(sealed(header))})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": FORMAT + 1}, f"has format {FORMAT + 1}; this version reads up to {FORMAT}. Upgrade torchbayes"),
        (
            {"kind": "checkpoint"},
            "holds a 'checkpoint', not a posterior; known are batch_norm, curve, draws, dropout, flow, gaussian, ",
        ),
        ({"kind": None}, "holds a None, not a posterior"),
    ],
)
def test_headers_that_cannot_be_read_are_said(saved: Path, changes: dict[str, Any], message: str) -> None:
    write_header(saved, **changes)
    with pytest.raises(ValueError, match=message):
        tb.load(saved, model_of())


def test_a_foreign_safetensors_file_is_said(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="without a torchbayes header"):
        tb.load(tmp_path / "x.safetensors", model_of())


def test_another_network_is_told_by_its_differences(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"does not fit this model: `first.weight` is missing.* and 4 more"):
        tb.load(saved, model_of("tied"))
    wide = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).double()
    with pytest.raises(ValueError, match=r"`0.weight` has shape \(6, 4\), expected \(7, 4\)"):
        tb.load(saved, tb.Model(wide, tb.likelihoods.Categorical()))
    part = model_of(random="2.*")
    with pytest.raises(ValueError, match=r"`0.weight` is not expected"):
        tb.load(saved, part)


LIKELIHOODS: dict[str, Any] = {
    "its likelihood is Categorical": tb.likelihoods.Poisson(),
    "label_smoothing=0.0.* label_smoothing=0.2": tb.likelihoods.Categorical(label_smoothing=0.2),
    "the model's Custom": lambda f: torch.distributions.Normal(f, 1.0),
}


@pytest.mark.parametrize("kind", list(POSTERIORS))
def test_a_model_of_another_likelihood_prior_or_temperature_is_refused(kind: str, tmp_path: Path) -> None:
    model = model_of()
    posterior, network = POSTERIORS[kind](model, 2), made("mlp")
    path = posterior.save(tmp_path / "q.safetensors")
    was = model.prior.segments[0].prior
    wide = tb.priors.Normal(7.0)
    others = [(said, tb.Model(network, likelihood, was)) for said, likelihood in LIKELIHOODS.items()]
    if not posterior.settings().get("tuned"):  # a tuned one has its own prior
        said = r"its prior of weights 0:\d+ is Normal.*, the model's Normal\(scale=7.0"
        others.append((said, tb.Model(network, model.likelihood, wide)))
    others.append((r"temperature is 1.0, the model's 0.5", tb.Model(network, model.likelihood, was, temperature=0.5)))
    for said, other in others:
        with pytest.raises(ValueError, match=f"was made under another model: .*{said}.*Build the model it was made"):
            tb.load(path, other)
    write_header(path, model=None)  # it does not say
    assert_same_tensors(tb.load(path, others[0][1]).tensors(), tb.load(path, model).tensors())


def test_what_differs_from_process_to_process_is_no_other_model(tmp_path: Path) -> None:
    """Addresses, and where a function is defined."""

    class Own:
        def log_prob(self, weights: torch.Tensor) -> torch.Tensor:
            return -0.5 * weights**2

    model = tb.Model(made("mlp"), lambda f: torch.distributions.Normal(f, 1.0), Own())
    path = tb.Point(model, normal(1, model.layout.size)).save(tmp_path / "q.safetensors")

    def anew() -> tb.Model:
        return tb.Model(made("mlp"), lambda f: torch.distributions.Normal(f, 1.0), Own())

    tb.load(path, anew())


def test_batch_norm_needs_calibration_after_loading(tmp_path: Path) -> None:
    model, data = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    method = tb.SWAG(epochs=4, batch_size=8, plan="loop")
    posterior = tb.fit(model, data, method, callbacks=())
    loaded = tb.load(posterior.save(tmp_path / "q.safetensors"), model)
    with pytest.raises(ValueError, match=r"`1` is a batch norm.*Load the posterior with `calibration=inputs`"):
        tb.predict(loaded, data[0])
    again = tb.load(tmp_path / "q.safetensors", model, calibration=lambda: [data[0][a : a + 8] for a in (0, 8, 16)])
    expected = posterior.functions(30, seed=1)(data[0])
    torch.testing.assert_close(again.functions(30, seed=1)(data[0]), expected, rtol=0, atol=0)


def test_inputs_in_any_form_calibrate_batch_norm_after_loading(tmp_path: Path) -> None:
    model, data = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    posterior = tb.fit(model, data, tb.SWAG(epochs=4, batch_size=8, plan="loop"), callbacks=())
    path, inputs = posterior.save(tmp_path / "q.safetensors"), data[0]
    loader = DataLoader(TensorDataset(*data), batch_size=len(inputs))
    expected = tb.load(path, model, calibration=lambda: [inputs]).functions(4)(inputs)
    loaded = tb.load(path, model)
    for again in (
        tb.load(path, model, calibration=inputs),
        tb.load(path, model, calibration=loader),
        loaded.calibrated((inputs,)),
    ):
        torch.testing.assert_close(again.functions(4)(inputs), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="NaN"):
        loaded.calibrated(inputs / 0 * 0)
    with pytest.raises(ValueError, match="`calibration` has no rows"):
        loaded.calibrated(inputs[:0])
    with pytest.raises(ValueError, match="give inputs without targets"):
        loaded.calibrated(data).functions(1)


def test_batch_norm_statistics_of_a_mode_are_saved(tmp_path: Path) -> None:
    model, data = model_of("conv_batch_norm"), rows_of("conv_batch_norm")
    posterior = tb.fit(model, data, tb.MAP(members=2, epochs=4, batch_size=8, plan="loop"), callbacks=())
    loaded = tb.load(posterior.save(tmp_path / "q.safetensors"), model)
    expected = posterior.functions()(data[0])
    torch.testing.assert_close(loaded.functions()(data[0]), expected, rtol=0, atol=0)
    assert loaded.statistics_known


def test_the_file_holds_no_pickle(saved: Path) -> None:
    whole = saved.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    assert set(header) == {"__metadata__", "mean_MD", "covariance.variance_MD", "covariance.factor_MRD"}
    assert json.loads(header["__metadata__"]["torchbayes"])["format"] == FORMAT
    start, stop = header["mean_MD"]["data_offsets"]
    stored = torch.frombuffer(bytearray(whole[8 + length + start : 8 + length + stop]), dtype=torch.float64)
    torch.testing.assert_close(stored.view(2, 51), POSTERIORS["gaussian_low_rank"](model_of(), 2).tensors()["mean_MD"])
