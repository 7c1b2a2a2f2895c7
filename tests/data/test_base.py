import numpy as np
import pytest
import torch

from torchbayes.checks import check_name
from torchbayes.data.base import Raw, Standardise, finish


def test_standardise_is_numpys_mean_and_std():
    values = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4 + 100
    fitted = Standardise.fit(values)
    expected = (values.numpy() - values.numpy().mean(0)) / values.numpy().std(0)
    np.testing.assert_allclose(fitted(values).numpy(), expected, atol=1e-12)
    torch.testing.assert_close(fitted.inverse(fitted(values)), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_column_keeps_its_size_though_rounding_gives_it_a_spread(dtype):
    constant = torch.full((1000,), 0.998, dtype=dtype)
    constant[::2] += torch.finfo(dtype).eps  # spread 1e-16 of its size, as in the naval set
    values = torch.stack([constant, torch.linspace(0, 1, 1000, dtype=dtype), torch.zeros(1000, dtype=dtype)], 1)
    fitted = Standardise.fit(values)
    assert fitted.scale[0] == 1
    assert fitted.scale[2] == 1
    assert fitted(values)[:, [0, 2]].abs().max() < 1e-6


def test_images_share_one_mean_and_scale_per_channel():
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5), dtype=np.uint8)
    labels = np.arange(20) % 2
    data = finish("x", Raw((pixels, labels), (pixels[:5], labels[:5]), "", ("a", "b"), levels=255))
    share = pixels / 255.0
    mean, std = share.mean((0, 2, 3), keepdims=True), share.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(data.train.inputs.numpy(), (share - mean) / std, atol=1e-5)
    np.testing.assert_allclose(data.standardise.inverse(data.test.inputs).numpy(), share[:5], atol=1e-6)
    assert data.is_image
    assert data.input_shape == (3, 4, 5)
    assert data.num_classes == 2
    assert repr(data) == "Data(name=x, train=20, test=5, inputs=3 × 4 × 5, task=classification, classes=2)"


def test_regression_is_standardised_by_training_rows_alone():
    rng = np.random.default_rng(1)
    inputs, targets = rng.normal(5, 3, (30, 2)), rng.normal(-2, 7, 30)
    data = finish("x", Raw((inputs[:20], targets[:20]), (inputs[20:], targets[20:]), ""))
    assert data.target_standardise is not None
    np.testing.assert_allclose(
        data.test.inputs.numpy(), (inputs[20:] - inputs[:20].mean(0)) / inputs[:20].std(0), rtol=1e-5
    )
    np.testing.assert_allclose(
        data.test.targets[:, 0].numpy(), (targets[20:] - targets[:20].mean()) / targets[:20].std(), rtol=1e-5
    )
    np.testing.assert_allclose(data.target_standardise.inverse(data.train.targets)[:, 0], targets[:20], rtol=1e-5)
    assert data.train.targets.shape == (20, 1)
    assert data.task == "regression"
    assert data.num_classes == 0


def test_targets_far_from_zero_keep_their_unit():
    targets = 1e9 + 40 + np.random.default_rng(1).normal(size=30)  # the mean has no float32 within 24
    data = finish("x", Raw((targets[:20, None], targets[:20]), (targets[20:, None], targets[20:]), ""))
    assert data.target_standardise is not None
    np.testing.assert_allclose(
        data.target_standardise.inverse(data.test.targets)[:, 0], targets[20:], atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("most", [3, 90_000])
def test_counts_come_back_exactly(most):
    rng = np.random.default_rng(2)
    inputs, counts = rng.normal(size=(300, 2)), rng.integers(0, most + 1, 300)
    actual = finish("x", Raw((inputs[:200], counts[:200]), (inputs[200:], counts[200:]), ""))
    again = actual.counts()
    assert again.target_standardise is None
    assert again.train.targets.shape == (200, 1)
    np.testing.assert_array_equal(again.train.targets[:, 0], counts[:200])
    np.testing.assert_array_equal(again.test.targets[:, 0], counts[200:])
    assert torch.equal(again.train.inputs, actual.train.inputs)
    np.testing.assert_array_equal(again.counts().test.targets, again.test.targets)


@pytest.mark.parametrize(("where", "wrong"), [(3, 2.5), (3, -1.0), (-1, 2.5), (-1, 7.001)])
def test_what_is_no_count_is_refused(where, wrong):
    targets = np.arange(30.0)
    targets[where] = wrong
    raw = Raw((np.zeros((20, 1)), targets[:20]), (np.zeros((10, 1)), targets[20:]), "")
    with pytest.raises(ValueError, match=rf"targets of x must be counts, whole numbers of at least 0; got {wrong:g}$"):
        finish("x", raw).counts()


def test_an_unknown_name_is_met_with_near_ones():
    with pytest.raises(ValueError, match=r"no fruit called 'aple'. Did you mean apple\?"):
        check_name("fruit", "aple", ["apple", "quince"])
    with pytest.raises(ValueError, match="Choose from: apple, pear"):
        check_name("fruit", "zzzz", ["apple", "pear"])
