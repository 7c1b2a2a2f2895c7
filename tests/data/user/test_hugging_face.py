"""Hugging Face data sets on the disk: tables and images, their parts, and new rows of them."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.user.test_images import folder
from tests.data.user.test_tables import raw
from torchbayes.data.user import read_data, read_new

datasets = pytest.importorskip("datasets")


def test_hugging_face_data_sets(tmp_path):
    root = folder(tmp_path / "pictures")
    files = sorted(map(str, root.rglob("*.png")))
    features = datasets.Features({"picture": datasets.Image(), "label": datasets.ClassLabel(names=["dark", "light"])})
    labels = [int("light" in file) for file in files]
    actual = datasets.Dataset.from_dict({"picture": files, "label": labels}, features=features)
    actual.save_to_disk(str(tmp_path / "saved"))
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
    kinds = datasets.Features({"kind": datasets.ClassLabel(names=["u", "v", "w"]), "y": datasets.Value("float64")})
    columns = {"kind": [0, 1, 2, -1] * 10, "y": [0.5 * i for i in range(40)]}
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk(str(tmp_path / "kinds"))
    data = read_data(tmp_path / "kinds", {"target": "y"})
    assert data.input_shape == (3,)  # a column for each class, none for what has no class
    assert any("1 category" in note and "kind (3)" in note for note in data.notes)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    bad = {"image": [Image.new("L", (4, 4)), None] * 10, "label": [0, 1] * 10}
    datasets.Dataset.from_dict(bad, features=features).save_to_disk(str(tmp_path / "bad"))
    with pytest.raises(ValueError, match="the image of row 2 of bad cannot be read"):
        read_data(tmp_path / "bad")
    with pytest.raises(ValueError, match=r"which has no setting 'task'\. Its settings are target, size, grey"):
        read_data(tmp_path / "bad", {"task": "regression"})
    lists = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 30, "label": [0, 1] * 15})
    lists.save_to_disk(str(tmp_path / "lists"))
    with pytest.raises(ValueError, match=r"columns x of lists are lists .*my_module:load"):
        read_data(tmp_path / "lists")
    next((tmp_path / "lists").glob("*.arrow")).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="is not a whole Hugging Face data set"):
        read_data(tmp_path / "lists")


def images(count, labels, *, names=("dark", "light")):
    """Grey images of one shade and a pixel that tells them apart, with labels that are classes."""
    made = [np.full((6, 5), 40 + 160 * (i % 2), dtype=np.uint8) for i in range(count)]
    for i, image in enumerate(made):
        image[0, 0] = i
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))})
    pictures = [Image.fromarray(image) for image in made]
    return datasets.Dataset.from_dict({"image": pictures, "label": labels}, features=features)


def test_rows_without_label_are_left_out(tmp_path):
    images(40, [None, -1] + [0, 1] * 19).save_to_disk(str(tmp_path / "gaps"))
    data = read_data(tmp_path / "gaps")
    assert (data.classes, len(data.train.targets) + len(data.test.targets)) == (("dark", "light"), 38)
    assert "Rows left out because they have no value in 'label': 2." in data.notes
    shades = data.standardise.inverse(data.train.inputs)[:, 0, 3, 3] * 255
    assert torch.allclose(shades, 40.0 + 160 * data.train.targets, atol=1e-3)
    new = read_new(data, tmp_path / "gaps")
    assert new.targets is None
    features = datasets.Features({"image": datasets.Image(), "label": datasets.List(datasets.Value("int64"))})
    columns = {"image": [Image.new("L", (4, 4))] * 20, "label": [[0], [1]] * 10}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "lists"))
    with pytest.raises(ValueError, match="the column 'label' of lists holds lists or the like, and a target is one"):
        read_data(tmp_path / "lists")


def test_parts_and_new_rows_of_images(tmp_path):
    parts = {"train": images(20, [0, 1] * 10), "validation": images(6, [0, 1] * 3), "test": images(4, [0, 1, 1, 1])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "three"))
    data = read_data(tmp_path / "three")
    assert data.test.targets.tolist() == [0, 1, 1, 1]
    assert "Not used: validation." in data.notes
    datasets.DatasetDict({k: parts[k] for k in ("train", "validation")}).save_to_disk(str(tmp_path / "two"))
    two = read_data(tmp_path / "two")
    assert two.test.targets.tolist() == [0, 1, 0, 1, 0, 1]
    assert "Test rows: those of the part validation, as there is no part called test." in two.notes
    with pytest.raises(ValueError, match=r"has the parts train, validation, test, and new rows .*: .*three/test\."):
        read_new(data, tmp_path / "three")
    for known in (data, read_data(folder(tmp_path / "pictures"))):
        new = read_new(known, tmp_path / "three" / "test")
        assert new.targets is not None
        assert new.targets.tolist() == [0, 1, 1, 1]
    assert torch.equal(read_new(data, tmp_path / "three" / "test").inputs, data.test.inputs)
    images(4, [0, 1, 0, 1], names=("dark", "red")).save_to_disk(str(tmp_path / "other"))
    other = read_new(data, tmp_path / "other")
    assert other.targets is None
    assert other.notes == ("No targets: the label 'red' is no class of three (dark, light).",)


def test_new_rows_of_tables(tmp_path):
    table = datasets.Dataset.from_dict({"x": [0.5 * i for i in range(30)], "y": [1.5 * i for i in range(30)]})
    table.save_to_disk(str(tmp_path / "table"))
    data = read_data(tmp_path / "table", {"target": "y"})
    new = read_new(data, tmp_path / "table")
    assert new.targets is not None
    assert raw(data, new.targets) == pytest.approx([1.5 * i for i in range(30)], abs=1e-4)
    table.remove_columns("y").save_to_disk(str(tmp_path / "bare"))
    bare = read_new(data, tmp_path / "bare")
    assert bare.targets is None
    assert torch.equal(bare.inputs, new.inputs)
    (tmp_path / "new.csv").write_text("x\n0.5\n")
    assert torch.equal(read_new(data, tmp_path / "new.csv").inputs, new.inputs[1:2])


def test_what_is_no_whole_data_set(tmp_path):
    table = datasets.Dataset.from_dict({"x": [0.5] * 30, "label": [0, 1] * 15})
    table.select([]).save_to_disk(str(tmp_path / "empty"))
    with pytest.raises(ValueError, match=r"empty has no rows\. Save a data set that has some"):
        read_data(tmp_path / "empty", {"target": "label"})
    table.save_to_disk(str(tmp_path / "part"))
    (tmp_path / "part" / "state.json").unlink()
    with pytest.raises(ValueError, match=r"part holds neither images nor .*no whole Hugging Face data set, which has"):
        read_data(tmp_path / "part", {"target": "label"})
    features = datasets.Features({"image": datasets.Array2D((2, 2), "uint8"), "label": datasets.Value("int64")})
    columns = {"image": [[[1, 2], [3, 4]]] * 30, "label": [0, 1] * 15}
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "arrays"))
    with pytest.raises(ValueError, match=r"columns image of arrays are lists .* takes\. Write a function"):
        read_data(tmp_path / "arrays")
