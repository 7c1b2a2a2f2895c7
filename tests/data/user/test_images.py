"""Folders of images by class, and Hugging Face data sets on the disk."""

import numpy as np
import pytest
import torch
from PIL import Image

from torchbayes.data.user import read_data, read_new
from torchbayes.data.user.pictures import look, pixels

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


def test_what_is_transparent_is_white_and_deep_pixels_are_refused(tmp_path):
    clear = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
    assert (pixels(clear, (3, 2, 2)) == 255).all()
    root = folder(tmp_path / "deep")
    Image.fromarray(np.array([[0, 1000], [3000, 4000]], dtype=np.uint16)).save(root / "dark" / "deep.png")
    with pytest.raises(ValueError, match=r"deep\.png cannot be read as an image \(it has more than 8 bits a pixel"):
        read_data(root)


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
    with pytest.raises(ValueError, match=r"text\.png cannot be read as an image .*Remove or replace it"):
        read_data(root)
    (root / "dark" / "text.png").write_bytes((root / "dark" / "01.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"text\.png cannot be read as an image"):
        read_data(root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds neither images nor .* such as empty/cat"):
        read_data(tmp_path / "empty")
    with pytest.raises(ValueError, match="holds no images"):
        read_new(read_data(folder(tmp_path / "good")), tmp_path / "empty")


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_photos_are_turned_as_their_camera_says(tmp_path, suffix):
    upright = np.zeros((8, 12, 3), dtype=np.uint8)
    upright[:4, :6], upright[4:, 6:, 0] = 200, 100
    # what a camera held so would have stored
    stored = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
    stored |= {6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270"}
    for tag, turn in stored.items():
        exif = Image.Exif()
        exif[0x0112] = tag
        image = Image.fromarray(upright).transpose(Image.Transpose[turn])
        image.save(tmp_path / f"{tag}.{suffix}", exif=exif, quality=100)
        with Image.open(tmp_path / f"{tag}.{suffix}") as photo:
            assert look(photo)[:2] == (8, 12)
            assert np.abs(pixels(photo, (3, 8, 12)).transpose(1, 2, 0).astype(int) - upright).mean() < 10
    for name in ("cat", "dog"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for i in range(6):
            (tmp_path / "set" / name / f"{i}.{suffix}").write_bytes((tmp_path / f"6.{suffix}").read_bytes())
    data = read_data(tmp_path / "set")
    assert data.input_shape == (3, 8, 12)
    assert torch.equal(read_new(data, tmp_path / f"6.{suffix}").inputs, data.test.inputs[:1])


def test_parts_by_their_usual_names(tmp_path):
    names = {"Train": 5, "VAL": 2, "testing": 3}
    for used, rows, note in (
        (("Train", "testing"), (10, 6), None),
        (("Train", "VAL"), (10, 4), "Test rows: those of the part VAL, as there is no part called test."),
        (("Train", "VAL", "testing"), (10, 6), "Not used: VAL."),
        (("Train",), None, "All rows are of the part Train: there is none to test on."),
    ):
        root = tmp_path / "_".join(used)
        for name in used:
            folder(root / name, count=names[name] if rows else 12)
        data = read_data(root)
        assert data.classes == ("dark", "light")
        assert (len(data.train.targets), len(data.test.targets)) == (rows or (22, 2))
        assert note is None or note in data.notes
    with pytest.raises(ValueError, match=r"has the parts Train, VAL, testing, and new images are one .*/testing\."):
        read_new(data, tmp_path / "Train_VAL_testing")
    assert read_new(data, tmp_path / "Train_VAL_testing" / "VAL").inputs.shape[0] == 4


def test_folders_with_images_are_classes_whatever_their_names(tmp_path):
    root = folder(tmp_path / "vehicles")
    (root / "dark").rename(root / "train")
    assert read_data(root).classes == ("light", "train")
    (root / "light").rename(root / "test")
    with pytest.raises(ValueError, match=r"test, train of .* must hold a folder of images for each class"):
        read_data(root)
    for words, match in (
        (("train", "training"), "more than one part of a kind: train, training"),
        (("val", "test"), "must have a part called train; it has test, val"),
        (("train", "trees"), "holds the part train, which has folders within it, beside trees"),
    ):
        for word in words:
            folder(tmp_path / words[1] / word)
        with pytest.raises(ValueError, match=match):
            read_data(tmp_path / words[1])


def test_hidden_folders_are_skipped_and_links_are_followed(tmp_path):
    root = folder(tmp_path / "real")
    (root / "dark" / ".ipynb_checkpoints").mkdir()
    (root / "dark" / "00.png").rename(root / "dark" / ".ipynb_checkpoints" / "00.png")
    (tmp_path / "linked").mkdir()
    for name in SHADES:
        (tmp_path / "linked" / name).symlink_to(root / name)
    for path in (root, tmp_path / "linked"):
        data = read_data(path)
        assert len(data.train.targets) + len(data.test.targets) == 23
        assert read_new(data, path).inputs.shape[0] == 23


def test_new_images_in_folders_that_are_no_classes(tmp_path):
    data = read_data(folder(tmp_path / "known"))
    new = folder(tmp_path / "new", size=(12, 10), count=2)
    (new / "dark").rename(new / "2024-01")
    actual = read_new(data, new)
    assert actual.targets is None
    assert actual.names is not None
    assert actual.names[0] == "2024-01/00.png"
    assert actual.notes == (
        "4 of 4 images are of another size than 6 x 5: cut to that shape around their middle and scaled.",
        "No targets: the folder '2024-01' is no class of known (dark, light).",
    )
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"new rows of known are images: a file, a folder .*; got t\.csv"):
        read_new(data, tmp_path / "t.csv")
