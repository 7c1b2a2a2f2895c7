"""Arrays in npz archives, and new rows for data sets that come from no file of the user."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torchbayes.catalogue.loading import load as load_by_name
from torchbayes.data import load
from torchbayes.data.user import as_data, is_file_name, read_data, read_new
from torchbayes.data.user.arrays import rows_of


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


def test_images_lie_in_arrays_in_three_ways(tmp_path):
    rng, labels = np.random.default_rng(0), np.arange(40) % 2
    colour = rng.integers(0, 256, (40, 3, 9, 8), dtype=np.uint8)
    for images, ways in (
        (colour, {"first": colour, "last": colour.transpose(0, 2, 3, 1)}),
        (colour[:, :1], {"first": colour[:, :1], "last": colour[:, 0, :, :, None], "none": colour[:, 0]}),
    ):
        for way, array in ways.items():
            data = as_data("mine", (array, labels, array[:4], labels[:4]))
            assert data.input_shape == images.shape[1:]
            actual = data.standardise.inverse(data.train.inputs) * 255
            assert torch.allclose(actual, torch.from_numpy(images).float(), atol=1e-3)
            assert sum("The arrays are taken for" in note for note in data.notes) == (way != "first")
            for other in ways.values():
                np.save(tmp_path / "new.npy", other[:4])
                assert torch.equal(read_new(data, tmp_path / "new.npy").inputs, data.test.inputs)
    small = as_data("mine", (colour[:, 0, :4, :4], labels))  # too small to be images
    assert small.input_shape == (4, 4)
    assert not any("images" in note for note in small.notes)


def test_bytes_and_floating_point_are_not_mixed(tmp_path):
    rng, labels = np.random.default_rng(0), np.arange(40) % 2
    images = rng.integers(0, 256, (40, 9, 8), dtype=np.uint8)
    np.save(tmp_path / "bytes.npy", images)
    np.save(tmp_path / "floats.npy", images / 255)
    with pytest.raises(ValueError, match=r"must be unsigned bytes.*got float64.*\(255 \* inputs\)\.round\(\)"):
        read_new(as_data("mine", (images, labels)), tmp_path / "floats.npy")
    with pytest.raises(ValueError, match=r"must be in floating point.*got unsigned bytes.*give inputs / 255"):
        read_new(as_data("mine", (images / 255, labels)), tmp_path / "bytes.npy")
    with pytest.raises(ValueError, match="test inputs of mine must be in floating point"):
        as_data("mine", (images / 255, labels, images, labels))


def test_what_functions_may_give():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.arange(30) % 3
    once = as_data("mine", (x, y))
    lists = as_data("mine", (x.tolist(), y.tolist()))
    assert torch.equal(lists.train.inputs, once.train.inputs)
    assert torch.equal(as_data("mine", (torch.from_numpy(x), y[:, None])).train.targets, once.train.targets)
    parted = as_data("mine", ((x, y), (x[:3], y[:3])))
    for same in (
        (x, y, x[:3], y[:3]),
        {"inputs": x, "targets": y, "test_inputs": x[:3], "test_targets": y[:3]},
        [[x.tolist(), y.tolist()], [x[:3].tolist(), y[:3].tolist()]],
    ):
        data = as_data("mine", same)
        assert torch.equal(data.train.inputs, parted.train.inputs)
        assert torch.equal(data.test.targets, parted.test.targets)
    whole = as_data("mine", (rng.integers(0, 9, (30, 2)), y))
    assert any("for token ids give a torchbayes.data.Data" in note for note in whole.notes)


X, Y = np.random.default_rng(0).normal(size=(30, 2)), np.arange(30) % 3
DATES = np.arange(30).astype("M8[D]")


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        ((X, np.eye(3)[Y]), r"one target for each row; got 3 .*targets\.argmax\(1\)"),
        ((X[:, 0], Y), r"must have shape \(rows, \.\.\.\); got \(30,\).*inputs\[:, None\]"),
        (((X, X), Y), r"inputs of mine must be one array; got several.*torchbayes\.fit"),
        (({"a": X}, Y), r"inputs of mine must be one array; got several"),
        (([[1, 2], [3]] * 15, Y), r"whose rows have one shape; got .*Fill rows up to one length"),
        ((X[:20], X[20:], Y[:20], Y[20:]), r"got shapes \(20, 2\) and \(10, 2\)\. The order is inputs, targets"),
        ((X, DATES), r"targets of mine must be numbers; got dates or times.*numpy\.timedelta64"),
        ((DATES[:, None], Y), r"inputs of mine must be numbers; got dates or times"),
        ((X, Y + 1j), r"targets of mine must be numbers or names of classes; got dtype complex128"),
        ((X, Y, X[:, :1], Y), r"test inputs of mine must have shape \(rows, 2\).*got \(30, 1\)"),
        ({"inputs": X, "targets": Y, "test_targets": Y}, r"holds `test_targets` and no `test_inputs`"),
        (pd.DataFrame(X), r"got .*DataFrame.* frame\[columns\]\.to_numpy\(\)"),
        (TensorDataset(torch.from_numpy(X)), r"Give the arrays themselves"),
        ((DataLoader(TensorDataset(torch.from_numpy(X))), Y), r"as inputs\. Give the arrays themselves"),
    ],
)
def test_what_functions_give_is_refused_with_advice(actual, said):
    with pytest.raises((TypeError, ValueError), match=said):
        as_data("mine", actual)


def test_test_rows_of_archives_are_whole(tmp_path):
    np.savez(tmp_path / "half.npz", inputs=X, targets=Y, test_inputs=X)
    with pytest.raises(ValueError, match=r"half\.npz holds `test_inputs` and no `test_targets`; test rows need both"):
        read_data(tmp_path / "half.npz")


def test_settings_of_functions_have_any_name(tmp_path, monkeypatch):
    (tmp_path / "loader_of_paths.py").write_text("def load(path, made):\n    return path, made\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = load_by_name("loader_of_paths:load", {"path": X.tolist(), "made": Y.tolist()})
    assert len(data.train.targets) + len(data.test.targets) == 30
    assert torch.equal(data.train.inputs, as_data("mine", (X, Y)).train.inputs)


def test_names_of_files(tmp_path):
    assert is_file_name("table.csv")
    assert is_file_name("./digits")
    assert is_file_name(str(tmp_path))
    assert not is_file_name("digits")
    assert not is_file_name("my_module:load")


@pytest.mark.parametrize("gone", [None, float("nan")])
def test_a_missing_name_is_no_class(gone):
    with pytest.raises(ValueError, match="targets of own must be known in every row; some are missing"):
        rows_of("own", np.zeros((4, 2)), np.array(["a", gone, "b", "a"], dtype=object))
