import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchbayes.data import load, ood_names, out_of_distribution
from torchbayes.data.base import Raw, finish
from torchbayes.data.images import HIRAGANA, IMAGE_SETS
from torchbayes.data.ood import conform, letters, patches


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def data_of(name, pixels):
    """A data set whose training and test part are these pixels."""
    part = (pixels, np.arange(len(pixels)) % 2)
    return finish(name, Raw(part, part, "", ("a", "b"), levels=255))


def colour_data(channels=3, size=(10, 12)):
    return data_of("mine", np.random.default_rng(0).integers(0, 256, (6, channels, *size), dtype=np.uint8))


def test_digits_meet_letters_and_patches(digits):
    actual = out_of_distribution(digits)
    assert list(actual) == ["letters", "patches"]
    for name, inputs in actual.items():
        assert inputs.shape == (1000, 1, 8, 8)
        raw = digits.standardise.inverse(inputs)
        assert raw.min() >= -1e-6
        assert raw.max() <= 1 + 1e-6
        assert torch.equal(inputs, out_of_distribution(digits, name)[name])
        assert not torch.equal(inputs, out_of_distribution(digits, name, seed=1)[name])
    # as bright as digits, so that brightness alone does not tell them apart
    mean = digits.standardise.inverse(digits.test.inputs).mean()
    assert digits.standardise.inverse(actual["letters"]).mean().item() == pytest.approx(mean.item(), rel=0.5)


def test_letters_are_dark_at_the_rim_and_reach_white():
    drawn = letters(300, 28, torch.Generator().manual_seed(0))
    rim = torch.cat([drawn[:, 0, 0], drawn[:, 0, -1], drawn[:, 0, :, 0], drawn[:, 0, :, -1]], 1)
    assert rim.mean() < 0.01
    assert (drawn.amax((1, 2, 3)) > 0.8).float().mean() > 0.95
    assert len({tuple(image.flatten().tolist()) for image in drawn}) == 300


def test_patches_are_cut_from_the_photographs():
    from sklearn.datasets import load_sample_images

    cut = patches(5, (6, 9), torch.Generator().manual_seed(0))
    windows = [
        np.lib.stride_tricks.sliding_window_view(photo, (6, 9), axis=(0, 1)) for photo in load_sample_images().images
    ]
    for patch in (cut * 255).round().to(torch.uint8).numpy():
        corner = [np.argwhere((view[..., 0, 0] == patch[:, 0, 0]).all(-1)) for view in windows]
        matches = [view[tuple(place)] for view, places in zip(windows, corner, strict=True) for place in places]
        assert any(np.array_equal(match, patch) for match in matches)
    assert patches(2, (500, 30), torch.Generator().manual_seed(0)).shape == (2, 3, 500, 30)


def test_conform_changes_channels_and_size():
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    grey = conform(images, 1, (8, 8))
    torch.testing.assert_close(grey[:, 0], 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2])
    torch.testing.assert_close(conform(grey, 3, (8, 8)), grey.repeat(1, 3, 1, 1))
    torch.testing.assert_close(conform(images, 3, (8, 8)), images)
    flat = torch.full((1, 1, 28, 28), 0.3)
    torch.testing.assert_close(conform(flat, 2, (8, 12)), torch.full((1, 2, 8, 12), 0.3))
    # antialiased: the mean survives a reduction
    assert conform(images, 3, (2, 2)).mean().item() == pytest.approx(images.mean().item(), rel=0.05)


def test_any_image_set_is_served_in_its_own_form():
    data = colour_data()
    actual = out_of_distribution(data, limit=7)
    assert {name: tuple(inputs.shape) for name, inputs in actual.items()} == dict.fromkeys(
        ("letters", "patches"), (7, 3, 10, 12)
    )
    raw = data.standardise.inverse(actual["letters"])
    torch.testing.assert_close(raw[:, 0], raw[:, 1], atol=1e-5, rtol=0)  # grey in every channel


def write_notmnist(root):
    images = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    (root / "notmnist").mkdir()
    for file, array in (("t10k-images-idx3-ubyte.gz", images), ("t10k-labels-idx1-ubyte.gz", np.zeros(9, np.uint8))):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (root / "notmnist" / file).write_bytes(gzip.compress(header + array.tobytes()))
    return images


def no_network(*_, **__):
    raise ConnectionError


def test_defaults_are_what_is_found_and_a_named_set_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr("pooch.retrieve", no_network)
    mnist = data_of("mnist", np.eye(28, dtype=np.uint8)[None, None] * 255)
    assert list(out_of_distribution(mnist, root=tmp_path, limit=2)) == ["letters", "patches"]
    images = write_notmnist(tmp_path)
    actual = out_of_distribution(mnist, root=tmp_path)
    assert list(actual) == ["notmnist"]
    raw = (mnist.standardise.inverse(actual["notmnist"]) * 255).round()
    np.testing.assert_array_equal(raw[:, 0].numpy(), images)
    with pytest.raises(FileNotFoundError, match="`kmnist` was not found"):
        out_of_distribution(mnist, "kmnist", root=tmp_path)
    few = (
        mnist.standardise.inverse(out_of_distribution(mnist, "notmnist", root=tmp_path, limit=4)["notmnist"]) * 255
    ).round()
    assert {tuple(row) for row in few.flatten(1).tolist()} < {tuple(row) for row in raw.flatten(1).tolist()}
    assert len(few) == 4


@pytest.mark.parametrize(
    ("name", "limit", "message"),
    [
        ("letter", None, "Did you mean letters"),
        ("letters", 0, "`limit` must be a whole number of at least 1; got 0"),
    ],
)
def test_wrong_requests_are_refused(digits, name, limit, message):
    with pytest.raises(ValueError, match=message):
        out_of_distribution(digits, name, limit=limit)


def test_the_classes_left_out_of_a_set_are_foreign_to_the_others(monkeypatch):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (40, 1, 28, 28), dtype=np.uint8), np.arange(40) % 10
    more = rng.integers(0, 256, (30, 1, 28, 28), dtype=np.uint8), np.arange(30) % 10
    entry = replace(IMAGE_SETS["kmnist"], read=lambda part, _: (pixels, labels) if part == "train" else more)
    monkeypatch.setitem(IMAGE_SETS, "kmnist", entry)
    data = load("kmnist", classes=("ki", "o", "wo"))
    actual = out_of_distribution(data, "kmnist")["kmnist"]
    others = ~np.isin(more[1], (0, 1, 9))
    raw = (data.standardise.inverse(actual) * 255).round().to(torch.uint8).numpy()
    np.testing.assert_array_equal(raw, more[0][others])
    assert len(out_of_distribution(data, "kmnist", limit=5)["kmnist"]) == 5
    every = load("kmnist", classes=HIRAGANA[::-1])
    with pytest.raises(ValueError, match="`kmnist` is the data set itself"):
        out_of_distribution(every, "kmnist")


def test_data_without_images_and_the_set_itself_are_refused():
    with pytest.raises(ValueError, match=r"`two_moons` has rows of shape \(2,\)"):
        out_of_distribution(load("two_moons"))
    same = data_of("mnist", np.eye(4, dtype=np.uint8)[None, None] * 255)
    with pytest.raises(ValueError, match="`mnist` is the data set itself"):
        out_of_distribution(same, "mnist")
    assert set(ood_names()) >= {"letters", "patches", "mnist", "notmnist", "cifar100_ood"}
