"""The real files, where they are available: shapes, counts, and numbers published elsewhere."""

from functools import cache
from zipfile import ZipFile

import numpy as np
import pytest
import torch

from torchbayes.data import corrupt_data, load, out_of_distribution
from torchbayes.data.images import cifar10_arrays, idx_arrays, read_residual


@pytest.fixture(scope="module", autouse=True)
def _unpacked_once():
    """Keep what each archive of CIFAR-10 holds: to unpack it takes most of the time; callers get copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchbayes.data.images.read_residual", cache(read_residual))
        yield


# set: features, training rows, test rows, splits, mean and standard deviation of the target over all rows
UCI = {
    "boston": (13, 455, 51, 20, 22.53, 9.188),
    "concrete": (8, 927, 103, 20, 35.82, 16.7),
    "energy": (8, 691, 77, 20, 22.31, 10.08),
    "kin8nm": (8, 7373, 819, 20, 0.7143, 0.2636),
    "naval": (16, 10741, 1193, 20, 0.975, 0.01472),
    "power": (4, 8611, 957, 20, 454.4, 17.07),
    "protein": (9, 41157, 4573, 5, 7.749, 6.118),
    "wine": (11, 1439, 160, 20, 5.636, 0.8073),
    "yacht": (6, 277, 31, 20, 10.5, 15.14),
}


@pytest.mark.parametrize("name", UCI)
def test_uci_sets(real_root, name):
    features, train, test, splits, mean, std = UCI[name]
    data = load(f"uci_{name}", split=splits - 1, root=real_root)
    assert data.target_standardise is not None
    assert data.train.inputs.shape == (train, features)
    assert data.test.targets.shape == (test, 1)
    targets = data.target_standardise.inverse(torch.cat([data.train.targets, data.test.targets]))
    assert targets.mean().item() == pytest.approx(mean, rel=1e-3)
    assert targets.std(correction=0).item() == pytest.approx(std, rel=1e-3)
    for part in (data.train.inputs, data.train.targets):
        torch.testing.assert_close(part.mean(0), torch.zeros(part.shape[1]), atol=1e-4, rtol=0)
        spread = part.std(0, correction=0)
        assert ((spread - 1).abs().lt(1e-3) | spread.lt(1e-6)).all()
        assert spread.lt(1e-6).sum() == (2 if name == "naval" and part.shape[1] > 1 else 0)
    assert data.test.inputs.abs().max() < 100  # no constant column blown up


# published per-channel mean and standard deviation of the training pixels
STATISTICS = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


# another set pins standardisation, and `test_cifar10_test_images_are_whole_photographs_in_order` how it is unpacked
STUDIED = [pytest.param(name, marks=() if name == "fashion_mnist" else pytest.mark.study) for name in STATISTICS]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIED)
def test_image_sets(real_root, name):
    data = load(name, root=real_root)
    mean, scale = STATISTICS[name]
    np.testing.assert_allclose(data.standardise.mean.flatten(), mean, atol=6e-5)
    np.testing.assert_allclose(data.standardise.scale.flatten(), scale, atol=6e-5)
    per_class = {"cifar10": 5000, "fashion_mnist": 6000}
    if name in per_class:
        assert torch.bincount(data.train.targets).tolist() == [per_class[name]] * 10
        assert torch.bincount(data.test.targets).tolist() == [1000] * 10
    else:
        assert torch.bincount(data.test.targets).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train.inputs.dtype == torch.float32


@pytest.mark.slow
def test_cifar10_test_images_are_whole_photographs_in_order(real_root):
    pixels, labels = cifar10_arrays("test", real_root)
    assert labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert pixels[0, :, 0, 0].tolist() == [158, 112, 49]  # of the first test image, a cat
    with ZipFile(real_root / "cifar10" / "test.npz").open("residual.npy") as stream:  # of which eight rows are read
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        residual = np.frombuffer(stream.read(8 * 3072), np.uint8).reshape(8, 3, 32, 32)[7].astype(int)
    expected = [
        [[residual[: c + 1, : i + 1, : j + 1].sum() % 256 for j in (0, 9, 31)] for i in (0, 20, 31)] for c in range(3)
    ]
    np.testing.assert_array_equal(pixels[7][:, [0, 20, 31]][:, :, [0, 9, 31]], expected)


def test_kmnist_test_part_and_strangers(real_root, monkeypatch):
    images, labels = idx_arrays("kmnist", "test", real_root)
    assert images.shape == (10000, 1, 28, 28)
    assert np.bincount(labels).tolist() == [1000] * 10
    data = load("fashion_mnist", root=real_root, train_size=500)
    actual = out_of_distribution(data, root=real_root, limit=200)
    assert {name: len(rows) for name, rows in actual.items()} == {"mnist": 200, "kmnist": 200, "notmnist": 200}
    kept = (data.standardise.inverse(actual["kmnist"]) * 255).round().to(torch.uint8).flatten(1)
    assert {bytes(row.numpy()) for row in kept} <= {image.tobytes() for image in images}

    def no_network(*_, **__):
        raise ConnectionError

    monkeypatch.setattr("pooch.retrieve", no_network)
    if not (real_root / "kmnist" / "train-images-idx3-ubyte.gz").exists():
        with pytest.raises(FileNotFoundError, match="`kmnist` was not found"):
            load("kmnist", root=real_root)


def test_corrupted_fashion_is_standardised_as_the_clean_one(real_root):
    data = load("fashion_mnist", root=real_root, train_size=500)
    inputs, targets = corrupt_data(data, "brightness", 3, limit=300)
    raw = data.standardise.inverse(data.test.inputs[:300])
    torch.testing.assert_close(data.standardise.inverse(inputs), (raw + 0.15).clamp(max=1), atol=1e-5, rtol=0)
    assert torch.equal(targets, data.test.targets[:300])


@pytest.mark.slow
def test_imdb_begins_as_printed_in_the_keras_documentation(real_root):
    data = load("imdb", root=real_root)
    assert data.train.inputs.shape == data.test.inputs.shape == (25000, 100)
    assert data.train.inputs.dtype == torch.int64
    assert data.train.inputs[0, -10:].tolist() == [4472, 113, 103, 32, 15, 16, 5345, 19, 178, 32]
    assert data.test.inputs[0, -3:].tolist() == [14, 6, 717]
    assert data.test.inputs[0, :32].eq(0).all()  # the first test review has 68 tokens
    assert data.test.inputs[0, 32:36].tolist() == [1, 591, 202, 14]
    assert [data.words[token] for token in data.test.inputs[0, 33:39].tolist()] == [
        "please",
        "give",
        "this",
        "one",
        "a",
        "miss",
    ]
    assert data.train.targets[:5].tolist() == [1, 0, 0, 1, 0]
    assert torch.bincount(data.train.targets).tolist() == [12500, 12500]
    assert data.train.inputs.max() == 19999


def test_toys(real_root):
    data = load("toy_izmailov", root=real_root)
    assert data.train.inputs.shape == (60, 1)
    assert data.test.inputs.shape == (100, 1)
    x = data.standardise.inverse(data.test.inputs)
    assert x.min().item() == pytest.approx(-12)
    assert x.max().item() == pytest.approx(12)
    other = load("toy_drbayes", root=real_root)
    assert (len(other.train.inputs), len(other.test.inputs)) == (360, 40)
    with np.load(real_root / "toy" / "drbayes_synthetic_regression.npz") as archive:
        table = archive["data"]
    assert other.target_standardise is not None
    ours = torch.cat([other.target_standardise.inverse(part.targets) for part in (other.train, other.test)])
    np.testing.assert_allclose(np.sort(ours[:, 0]), np.sort(table[:, 1]), atol=1e-5)


# tests of some classes in test_datasets.py and test_ood.py pin the choice; this is that of real photographs
@pytest.mark.study
@pytest.mark.slow
def test_half_of_the_classes_of_cifar10(real_root):
    seen = ("airplane", "automobile", "bird", "cat", "deer")
    data = load("cifar10", classes=seen, root=real_root)
    assert torch.bincount(data.train.targets).tolist() == [5000] * 5
    assert torch.bincount(data.test.targets).tolist() == [1000] * 5
    strange = out_of_distribution(data, "cifar10", root=real_root)["cifar10"]
    pixels, labels = cifar10_arrays("test", real_root)
    raw = (data.standardise.inverse(strange) * 255).round().to(torch.uint8).numpy()
    np.testing.assert_array_equal(raw, pixels[labels > 4])
