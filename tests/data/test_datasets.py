import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from torchbayes.data import load, names, num_splits


def test_digits_are_scikit_learns_split_by_class():
    data = load("digits")
    assert data.train.inputs.shape == (1437, 1, 8, 8)
    assert data.test.inputs.shape == (360, 1, 8, 8)
    raw = torch.cat([data.standardise.inverse(part.inputs) for part in (data.train, data.test)]) * 16
    labels = torch.cat([data.train.targets, data.test.targets])
    ours = sorted(map(tuple, torch.cat([raw.flatten(1).round(), labels[:, None]], 1).int().tolist()))
    images, digits = load_digits(return_X_y=True)
    assert ours == sorted(map(tuple, np.column_stack([images, digits]).astype(int).tolist()))
    shares = torch.bincount(data.test.targets) / torch.bincount(labels)
    torch.testing.assert_close(shares, torch.full((10,), 0.2), atol=0.005, rtol=0)
    torch.testing.assert_close(data.train.inputs.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(data.train.inputs.std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0)


def test_splits_differ_and_repeat():
    assert torch.equal(load("digits", split=3).test.inputs, load("digits", split=3).test.inputs)
    assert not torch.equal(load("digits", split=3).test.targets, load("digits", split=4).test.targets)


def test_a_smaller_training_set_is_a_seeded_subset_with_its_own_statistics():
    small, smaller, whole = load("digits", train_size=100), load("digits", train_size=40), load("digits")
    rows = {tuple(row) for row in (whole.standardise.inverse(whole.train.inputs) * 16).flatten(1).round().tolist()}
    kept = (small.standardise.inverse(small.train.inputs) * 16).flatten(1).round()
    assert {tuple(row) for row in kept.tolist()} <= rows
    fewer = (smaller.standardise.inverse(smaller.train.inputs) * 16).flatten(1).round()
    assert {tuple(row) for row in fewer.tolist()} <= {tuple(row) for row in kept.tolist()}
    torch.testing.assert_close(small.standardise.mean.item(), kept.mean().item() / 16, rtol=1e-5, atol=0)
    assert not torch.equal(load("digits", train_size=100, seed=1).train.targets, small.train.targets)


def test_some_classes_are_kept_with_new_labels_and_statistics_of_their_own():
    whole, some = load("digits"), load("digits", classes=["7", "0", "4"])
    assert some.classes == ("7", "0", "4")
    assert some.num_classes == 3
    assert some.name == "digits"
    for part, of in ((some.train, whole.train), (some.test, whole.test)):
        old = torch.tensor([7, 0, 4])[part.targets]
        kept = torch.isin(of.targets, torch.tensor([0, 4, 7]))
        assert torch.equal(old, of.targets[kept])  # in the old order
        raw = some.standardise.inverse(part.inputs)
        torch.testing.assert_close(raw, whole.standardise.inverse(of.inputs[kept]), atol=1e-6, rtol=0)
    torch.testing.assert_close(some.train.inputs.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(some.train.inputs.std(correction=0), torch.tensor(1.0), atol=1e-5, rtol=0)


def test_a_smaller_training_set_of_some_classes_is_drawn_from_their_rows():
    some, few = load("digits", classes=("3", "5")), load("digits", classes=("3", "5"), train_size=40, seed=2)
    assert len(few.train.targets) == 40
    assert torch.equal(few.test.targets, some.test.targets)
    with pytest.raises(ValueError, match=f"between 1 and its {len(some.train.targets)} rows; got 1000"):
        load("digits", classes=("3", "5"), train_size=1000)
    moons = load("two_moons", classes=load("two_moons").classes[::-1])
    assert torch.equal(moons.train.targets, 1 - load("two_moons").train.targets)


@pytest.mark.parametrize(
    ("name", "classes", "error", "message"),
    [
        ("digits", ("1",), ValueError, "at least two, each given once; got 1"),
        ("digits", ("1", "2", "1"), ValueError, "each given once; got 1, 2, 1"),
        ("digits", (), ValueError, "got none"),
        ("digits", ("1", "10"), ValueError, "no class of digits called '10'"),
        ("digits", "12", TypeError, r"must be names in a tuple or list, such as \('0', '1'\); got '12'"),
        ("digits", (1, 2), TypeError, "must be names"),
        ("toy_sine", ("1", "2"), ValueError, "`toy_sine` is a regression. Leave them out"),
    ],
)
def test_classes_that_do_not_fit_are_refused(name, classes, error, message):
    with pytest.raises(error, match=message):
        load(name, classes=classes)


def test_toy_sine_has_a_gap_and_noise_of_a_tenth():
    inputs, residuals = [], []
    for split in range(num_splits("toy_sine")):
        data = load("toy_sine", split=split)
        assert data.target_standardise is not None
        x = data.standardise.inverse(data.train.inputs)
        inputs.append(x)
        residuals.append(data.target_standardise.inverse(data.train.targets) - torch.sin(3 * x))
    x, noise = torch.cat(inputs), torch.cat(residuals)
    assert x.abs().min() >= 0.499
    assert x.abs().max() <= 1.501
    assert abs((x < 0).float().mean() - 0.5) < 1e-6
    assert noise.std().item() == pytest.approx(0.1, abs=4 * 0.1 / (2 * len(noise)) ** 0.5)
    assert noise.mean().item() == pytest.approx(0, abs=4 * 0.1 / len(noise) ** 0.5)


def test_two_moons_lie_on_their_half_circles():
    data = load("two_moons")
    points = data.standardise.inverse(data.test.inputs)
    assert torch.bincount(data.train.targets).tolist() == [100, 100]
    centres = torch.tensor([[0.0, 0.0], [1.0, 0.5]])[data.test.targets]
    radius = (points - centres).norm(dim=1)
    # distance from the centre of a point at radius 1 with noise 0.15 a coordinate: mean 1 + 0.15^2 / 2, scale 0.15
    assert radius.mean().item() == pytest.approx(1 + 0.15**2 / 2, abs=4 * 0.15 / 1000**0.5)
    assert radius.std().item() == pytest.approx(0.15, abs=4 * 0.15 / 2000**0.5)


@pytest.fixture
def uci_file(tmp_path):
    rng = np.random.default_rng(0)
    table = rng.normal(10, 2, (308, 7))
    order = np.stack([rng.permutation(308) for _ in range(20)]).astype(np.int32)
    (tmp_path / "uci_regression").mkdir()
    np.savez(
        tmp_path / "uci_regression" / "yacht.npz",
        data=table,
        feature_columns=np.array([0, 1, 3, 4, 5, 6], np.int32),
        target_column=np.array([2], np.int32),
        train_index=order[:, :277],
        test_index=order[:, 277:],
    )
    return tmp_path, table, order


def test_a_uci_split_takes_the_stated_rows_and_columns(uci_file, monkeypatch):
    root, table, order = uci_file
    monkeypatch.setenv("TORCHBAYES_DATA", str(root))
    data = load("uci_yacht", split=7)
    assert data.target_standardise is not None
    train, test = table[order[7, :277]], table[order[7, 277:]]
    np.testing.assert_allclose(data.standardise.inverse(data.train.inputs), train[:, [0, 1, 3, 4, 5, 6]], rtol=1e-6)
    np.testing.assert_allclose(data.target_standardise.inverse(data.test.targets)[:, 0], test[:, 2], rtol=1e-6)
    expected = (test[:, [0, 1, 3, 4, 5, 6]] - train[:, [0, 1, 3, 4, 5, 6]].mean(0)) / train[:, [0, 1, 3, 4, 5, 6]].std(
        0
    )
    np.testing.assert_allclose(data.test.inputs, expected, atol=1e-6)


def test_names_have_one_line_each():
    lines = names()
    assert {"digits", "cifar10", "imdb", "two_moons", "toy_sine", *(f"uci_{name}" for name in ("wine", "yacht"))} <= {
        *lines
    }
    assert all(line and "\n" not in line for line in lines.values())
    assert num_splits("uci_protein") == 5
    assert num_splits("uci_boston") == 20
    assert num_splits("mnist") == 1


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("digit", {}, "Did you mean digits"),
        ("notmnist", {}, r"no training part.*out_of_distribution\(data, 'notmnist'\)"),
        ("digits", {"split": 20}, "`split` of `digits` must be between 0 and 19; got 20"),
        ("digits", {"train_size": 0}, "`train_size` must be a whole number of at least 1; got 0"),
        ("digits", {"train_size": 1438}, "got 1438"),
    ],
)
def test_wrong_requests_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        load(name, **settings)


def test_a_missing_file_says_what_is_needed_and_where(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`uci_energy`.*TORCHBAYES_DATA is not set.*`train_index`"):
        load("uci_energy")
    with pytest.raises(FileNotFoundError, match=r"no file .*toy.understandingbdl.*`toy_sine` is"):
        load("toy_izmailov", root=tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"`root` must name an existing folder; got .*nowhere"):
        load("mnist", root=tmp_path / "nowhere")
    monkeypatch.setenv("TORCHBAYES_DATA", str(tmp_path / "lost"))
    with pytest.raises(FileNotFoundError, match="environment variable TORCHBAYES_DATA must name"):
        load("uci_wine")
    assert len(load("toy_sine").test.inputs) == 200  # needs no file
