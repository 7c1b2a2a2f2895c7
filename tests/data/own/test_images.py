"""Folders of images by class, and Hugging Face data sets on the disk."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.own.test_tables import raw
from torchbayes.data.own import read_data, read_new
from torchbayes.data.own.images import pixels

SHADES = {"dark": 40, "light": 200}


def folder(root, *, size=(6, 5), mode="L", count=12):
    """Two classes of images, each of one shade and a pixel that tells the images apart."""
    for name, shade in SHADES.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            image = np.full(size, shade, dtype=np.uint8)
            image[0, 0] = i
            Image.fromarray(image).convert(mode).save(root / name / f"{i:02d}.png")
    return root


def test_folders_are_classes_and_pixels_are_kept(tmp_path):
    data = read_data(folder(tmp_path / "pictures"))
    assert (data.name, data.classes, data.input_shape) == ("pictures", ("dark", "light"), (1, 6, 5))
    assert (len(data.train.targets), len(data.test.targets)) == (22, 2)
    raw = data.standardise.inverse(data.train.inputs) * 255
    shades = torch.tensor([SHADES[name] for name in data.classes])
    assert torch.allclose(raw[:, 0, 3, 3], shades[data.train.targets].float(), atol=1e-3)
    assert "Inputs: images of 6 x 5, grey, standardised by channel." in data.notes


def test_other_sizes_and_colours_are_told(tmp_path):
    root = folder(tmp_path / "mixed")
    Image.new("RGB", (10, 20), "red").save(root / "dark" / "large.jpg")
    data = read_data(root)
    assert data.input_shape == (3, 32, 32)
    assert any("25 of 25 images are of another size" in note for note in data.notes)
    data = read_data(root, {"size": [4, 8], "grey": True})
    assert data.input_shape == (1, 4, 8)
    for wrong in ({"size": 0}, {"size": [3]}, {"size": "big"}, {"grey": "no"}):
        with pytest.raises(ValueError, match="must be"):
            read_data(root, wrong)


def test_transparency_and_depth_become_bytes():
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert (pixels(clear, (3, 2, 2)) == 255).all()
    deep = Image.fromarray(np.array([[0, 1000], [3000, 4000]], dtype=np.uint16))
    assert pixels(deep, (1, 2, 2))[0].tolist() == [[0, 64], [191, 255]]


def test_folders_for_training_and_testing(tmp_path):
    folder(tmp_path / "set" / "train", count=5)
    folder(tmp_path / "set" / "test", count=2)
    data = read_data(tmp_path / "set")
    assert (len(data.train.targets), len(data.test.targets)) == (10, 4)


def test_new_images(tmp_path):
    data = read_data(folder(tmp_path / "known"))
    new = read_new(data, folder(tmp_path / "new", size=(12, 10), count=2))
    assert new.names == ["dark/00.png", "dark/01.png", "light/00.png", "light/01.png"]
    assert new.targets is not None
    assert new.targets.tolist() == [0, 0, 1, 1]
    assert new.inputs.shape == (4, 1, 6, 5)
    one = read_new(data, tmp_path / "known" / "light" / "03.png")
    assert one.targets is None
    both = torch.cat([data.train.inputs, data.test.inputs])
    assert (both == one.inputs).flatten(1).all(1).sum() == 1


def test_what_is_no_image_is_refused(tmp_path):
    root = folder(tmp_path / "bad")
    (root / "dark" / "text.png").write_text("no image")
    with pytest.raises(ValueError, match=r"text\.png is not a whole image .*Remove or replace it"):
        read_data(root)
    (root / "dark" / "text.png").write_bytes((root / "dark" / "01.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"text\.png is not a whole image"):
        read_data(root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must hold a folder of images for each class, such as empty/cat"):
        read_data(tmp_path / "empty")
    with pytest.raises(ValueError, match="holds no images"):
        read_new(read_data(folder(tmp_path / "good")), tmp_path / "empty")


def test_hugging_face_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    root = folder(tmp_path / "pictures")
    files = sorted(map(str, root.rglob("*.png")))
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "light"])})
    labels = [int("light" in file) for file in files]
    found = datasets.Dataset.from_dict({"picture": files, "label": labels}, features=features)
    found.save_to_disk(str(tmp_path / "saved"))
    here, there = read_data(tmp_path / "saved"), read_data(root)
    assert here.classes == there.classes
    assert torch.equal(here.train.inputs, there.train.inputs)
    assert torch.equal(here.test.targets, there.test.targets)
    table = datasets.Dataset.from_dict({"x": [0.5 * i for i in range(30)], "y": [1.5 * i for i in range(30)]})
    parts = datasets.DatasetDict({"train": table.select(range(20)), "test": table.select(range(20, 30))})
    parts.save_to_disk(str(tmp_path / "table"))
    data = read_data(tmp_path / "table", {"target": "y"})
    assert (data.task, len(data.train.targets), len(data.test.targets)) == ("regression", 20, 10)
    assert raw(data, data.test.targets)[0] == pytest.approx(30.0, abs=1e-4)
    with pytest.raises(ValueError, match=r"say which column of table is to be predicted: --target x or y"):
        read_data(tmp_path / "table")
    lists = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 30, "label": [0, 1] * 15})
    lists.save_to_disk(str(tmp_path / "lists"))
    with pytest.raises(ValueError, match=r"columns x of lists are lists .*my_module:load"):
        read_data(tmp_path / "lists")
    next((tmp_path / "lists").glob("*.arrow")).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is not a whole Hugging Face data set"):
        read_data(tmp_path / "lists")
