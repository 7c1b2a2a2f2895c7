"""Data of others: measured before they are unpacked; folders that lead elsewhere; cells that spreadsheets run."""

import csv
import gzip
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from torchbayes.catalogue.loading import is_file
from torchbayes.cli import main
from torchbayes.data import files
from torchbayes.data.user import pictures, read_data
from torchbayes.predictive.written import write_columns

ROWS = "a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40))


@pytest.fixture
def low(monkeypatch):
    """A bound of 64 KiB on what may be a hundred times its file."""
    monkeypatch.setattr(files, "_PACKED", 1 << 16)


def npz(path):
    np.savez_compressed(path, inputs=np.zeros((4000, 50)), targets=np.zeros(4000))


def gz(path):
    path.write_bytes(gzip.compress(("a,y\n" + "1,0\n" * 200_000).encode()))


def zipped(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", "a,y\n" + "1,0\n" * 200_000)


def parquet(path):
    pytest.importorskip("pyarrow")
    pd.DataFrame({"a": np.zeros(1_000_000), "y": 1}).to_parquet(path)


@pytest.mark.parametrize(
    ("name", "write"), [("x.npz", npz), ("x.csv.gz", gz), ("x.csv.zip", zipped), ("x.parquet", parquet)]
)
def test_archives_are_measured_before_they_are_unpacked(low, tmp_path, name, write):
    write(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name} .*once it is unpacked; at most .* are taken"):
        read_data(tmp_path / name, {} if name == "x.npz" else {"target": "y"})


def test_what_does_not_fit_in_memory_is_not_read(monkeypatch, tmp_path):
    (tmp_path / "x.csv").write_text(ROWS)
    monkeypatch.setattr(files, "free_memory", lambda: 100.0)
    with pytest.raises(ValueError, match="are taken"):
        read_data(tmp_path / "x.csv", {"target": "y"})


def test_ordinary_archives_are_read(low, tmp_path):
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    np.savez_compressed(
        tmp_path / "x.npz", inputs=np.random.default_rng(0).normal(size=(40, 3)), targets=np.arange(40) % 2
    )
    assert len(read_data(tmp_path / "x.csv.gz", {"target": "y"}).train.inputs) == 36
    assert len(read_data(tmp_path / "x.npz").train.inputs) == 36


def test_an_array_that_claims_more_than_it_holds_is_no_array(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("inputs.npy", stream.getvalue() + bytes(80))
    said = r"x\.npz takes more memory than is free \(Unable to allocate 728\. TiB.*if it is damaged.* fetch it again"
    with pytest.raises(ValueError, match=said):
        read_data(tmp_path / "x.npz")


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_packed_tables_that_are_cut_or_no_such_files_are_named(tmp_path, suffix):
    pd.read_csv(io.StringIO(ROWS * 9)).to_csv(tmp_path / f"x.csv.{suffix}", index=False)
    whole = (tmp_path / f"x.csv.{suffix}").read_bytes()
    for content in (whole[: len(whole) // 2], ROWS.encode()):
        (tmp_path / f"x.csv.{suffix}").write_bytes(content)
        with pytest.raises(ValueError, match=f"is not a whole {suffix} file"):
            read_data(tmp_path / f"x.csv.{suffix}", {"target": "y"})


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_pipes_and_devices_are_no_files(tmp_path, monkeypatch, capsys, make):
    monkeypatch.chdir(tmp_path)
    make(Path("x.csv"))
    assert main(["fit", "--data", "x.csv", "--target", "y", "--directory", "run"]) == 2
    assert "x.csv is a pipe or a device" in capsys.readouterr().err


def test_a_zero_byte_in_a_path_is_said(capsys, tmp_path):
    assert not is_file("a\0b")
    assert main(["fit", "--data", "two_moons", "--method", "MAP", "--directory", f"{tmp_path}/a\0b"]) == 2
    assert "holds a zero byte" in capsys.readouterr().err


def test_tables_of_too_many_columns_are_refused_at_once(tmp_path):
    width = 200_000
    (tmp_path / "x.csv").write_text("\n".join(",".join(["1"] * width) for _ in range(3)))
    with pytest.raises(ValueError, match=r"200,000 values, and a table at most 20,000 columns"):
        read_data(tmp_path / "x.csv", {"target": "1"})


# --- folders


def photos(folder):
    for name, shade in (("dark", 30), ("light", 220)):
        (folder / name).mkdir(parents=True)
        for i in range(12):
            Image.new("L", (4, 4), shade + i).save(folder / name / f"{i}.png")
    return folder


def test_links_out_of_a_folder_of_images_do_not_lead_around_the_disk(tmp_path):
    folder = photos(tmp_path / "photos")
    for name, target in (("all", "/"), ("up", ".."), ("here", ".")):
        (folder / name).symlink_to(target)
    (folder / "dark" / "deep").symlink_to("/")
    data = read_data(folder)
    assert data.classes == ("dark", "light")
    assert len(data.train.inputs) + len(data.test.inputs) == 24


def test_folders_of_other_files_are_not_walked_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_MANY", 50)
    folder = photos(tmp_path / "photos")
    assert len(pictures.images_in(folder)) == 24
    for i in range(300):
        (folder / f"{i}.txt").touch()
    with pytest.raises(ValueError, match=r"more than 50 files, and .* of those seen so far are images"):
        read_data(folder)


# --- cells


def test_texts_that_a_spreadsheet_runs_are_quoted_and_numbers_are_not(tmp_path):
    texts = ["=HYPERLINK(1)", "@SUM(1)", "+cmd|' /C'!A0", "-x", "\t=1", "\r=1", "plain", "-1.5", "+3", "a=b", ""]
    columns = {"=1+1": np.array(texts), "mean": np.linspace(-1.0, 1.0, len(texts)), "count": -np.arange(len(texts))}
    write_columns(tmp_path / "x.csv", columns, names=texts)
    with (tmp_path / "x.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["name", "'=1+1", "mean", "count"]
    expected = [f"'{text}" for text in texts[:6]] + texts[6:]
    assert [row[0] for row in rows] == [row[1] for row in rows] == expected
    assert [float(row[2]) for row in rows] == pytest.approx(columns["mean"].tolist())
    assert [int(row[3]) for row in rows] == columns["count"].tolist()
