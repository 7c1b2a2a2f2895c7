"""Arrays in npz archives, and new rows for data sets that come from no file of the user."""

import numpy as np
import pytest
import torch

from torchbayes.data import load
from torchbayes.data.own import as_data, is_file_name, read_data, read_new


def test_archives_by_the_names_of_their_arrays(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    np.savez(tmp_path / "all.npz", inputs=x, targets=y)
    np.savez(tmp_path / "two.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    data = read_data(tmp_path / "two.npz")
    assert (len(data.train.targets), len(data.test.targets)) == (20, 10)
    exact = torch.from_numpy((x[20:] - x[:20].mean(0)) / x[:20].std(0)).float()
    assert torch.allclose(data.test.inputs, exact, atol=1e-6)
    assert len(read_data(tmp_path / "all.npz").train.targets) == 27
    new = read_new(data, tmp_path / "two.npz")  # its test rows
    assert torch.equal(new.inputs, data.test.inputs)
    assert new.targets is not None
    assert torch.allclose(new.targets, data.test.targets, atol=1e-6)
    np.save(tmp_path / "new.npy", x[20:23])
    assert torch.equal(read_new(data, tmp_path / "new.npy").inputs, data.test.inputs[:3])
    np.savez(tmp_path / "odd.npz", first=x, second=y)
    with pytest.raises(ValueError, match=r"must hold arrays `inputs` and `targets`.*it holds first, second"):
        read_data(tmp_path / "odd.npz")
    np.save(tmp_path / "wide.npy", np.zeros((3, 5)))
    with pytest.raises(ValueError, match=r"must have shape \(rows, 4\), as those that were fitted; got \(3, 5\)"):
        read_new(data, tmp_path / "wide.npy")
    (tmp_path / "broken.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:200])
    with pytest.raises(ValueError, match="is not a whole npz archive"):
        read_data(tmp_path / "broken.npz")


def test_new_rows_of_arrays_from_a_function(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
    data = as_data("mine", (images, np.arange(40) % 2))
    np.save(tmp_path / "same.npy", images)
    new = read_new(data, tmp_path / "same.npy")
    rows = {row.numpy().tobytes() for row in new.inputs}
    assert all(row.numpy().tobytes() in rows for row in data.train.inputs)
    np.save(tmp_path / "floats.npy", images / 255)
    with pytest.raises(ValueError, match="must be unsigned bytes"):
        read_new(data, tmp_path / "floats.npy")


def test_new_rows_for_named_sets(tmp_path):
    moons = load("two_moons")
    raw = moons.standardise.inverse(moons.test.inputs).numpy()
    (tmp_path / "new.csv").write_text("\n".join(["a,b", *(f"{a:.9g},{b:.9g}" for a, b in raw[:5])]))
    assert torch.allclose(read_new(moons, tmp_path / "new.csv").inputs, moons.test.inputs[:5], atol=1e-6)
    (tmp_path / "three.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(ValueError, match=r"must have 2 columns of numbers, the inputs of two_moons .*it has 3"):
        read_new(moons, tmp_path / "three.csv")
    digits = load("digits")
    unit = digits.standardise.inverse(digits.test.inputs[:3])
    np.save(tmp_path / "digits.npy", unit.clamp(0, 1).numpy())
    assert torch.allclose(read_new(digits, tmp_path / "digits.npy").inputs, digits.test.inputs[:3], atol=1e-5)
    np.save(tmp_path / "digits.npy", 16 * unit.numpy())
    with pytest.raises(ValueError, match="must be bytes, or numbers from 0 to 1; got"):
        read_new(digits, tmp_path / "digits.npy")


def test_names_of_files(tmp_path):
    assert is_file_name("table.csv")
    assert is_file_name("./digits")
    assert is_file_name(str(tmp_path))
    assert not is_file_name("digits")
    assert not is_file_name("my_module:load")
