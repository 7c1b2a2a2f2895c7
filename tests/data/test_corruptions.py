import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from torchbayes.data import CORRUPTIONS, corrupt, corrupt_data, load
from torchbayes.data.corruptions import _box_filter, _jpeg, defocus_kernel, plasma, rotate, translate
from torchbayes.randomness.seeds import Purpose, generator


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    return data.standardise.inverse(data.test.inputs).clamp(0, 1)


@pytest.fixture
def colour():
    smooth = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.nn.functional.interpolate(smooth, (32, 24), mode="bilinear").clamp(0, 1)


def change(images, name, severity):
    return (corrupt(images, name, severity) - images).abs().mean().item()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_severity_changes_real_digits_more(digits, name):
    large = torch.nn.functional.interpolate(digits[:100], (32, 32), mode="bicubic").clamp(0, 1)
    changes = [change(large, name, severity) for severity in range(1, 6)]
    assert changes[0] > 0
    for severity, (less, more) in enumerate(itertools.pairwise(changes), start=1):
        if (name, severity) == ("motion_blur", 3):  # the published constants differ in the tail of the kernel only
            assert more >= less * (1 - 1e-4)
        else:
            assert more > less * 1.03, (severity, changes)
    assert change(digits, name, 5) > 1.5 * change(digits, name, 1) > 0  # 8x8


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize(
    "shape", [(3, 1, 8, 8), (2, 3, 32, 20), (2, 4, 9, 12), (2, 1, 1, 1), (1, 1, 2, 3), (2, 3, 64, 64)]
)
def test_any_size_and_channel_count_keeps_shape_and_range(name, shape):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    for severity in (1, 5):
        out = corrupt(images, name, severity)
        assert out.shape == images.shape
        assert out.min() >= 0
        assert out.max() <= 1
        assert torch.equal(out, corrupt(images, name, severity))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_dtype_is_kept_and_hardly_matters(digits, name, dtype):
    images = digits[:5].to(dtype)
    before = images.clone()
    out = corrupt(images, name, 3)
    assert out.dtype == dtype
    assert torch.equal(images, before)
    torch.testing.assert_close(out.float(), corrupt(digits[:5], name, 3), atol=4e-3, rtol=0)


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog", "rotation"])
def test_randomness_follows_the_seed(digits, name):
    assert torch.equal(corrupt(digits, name, 2, seed=5), corrupt(digits, name, 2, seed=5))
    assert not torch.equal(corrupt(digits, name, 2, seed=5), corrupt(digits, name, 2, seed=6))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_empty_batch_stays_empty(name):
    assert corrupt(torch.zeros(0, 1, 8, 8), name, 1).shape == (0, 1, 8, 8)


def test_the_global_random_state_is_left_alone(digits):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for name in CORRUPTIONS:
        corrupt(digits[:3], name, 1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_noise_has_the_published_scale(severity):
    images = torch.full((40, 1, 50, 50), 0.5)  # 5 standard deviations from either end
    noise = corrupt(images, "gaussian_noise", severity) - images
    scale = {1: 0.04, 5: 0.10}[severity]
    assert noise.std().item() == pytest.approx(scale, rel=4 / math.sqrt(2 * images.numel()))
    assert noise.mean().item() == pytest.approx(0, abs=4 * scale / math.sqrt(images.numel()))


def test_shot_noise_is_poisson():
    images = torch.full((40, 1, 50, 50), 0.3)
    counts = corrupt(images, "shot_noise", 5) * 50
    rate, n = 0.3 * 50, images.numel()
    torch.testing.assert_close(counts, counts.round(), atol=1e-4, rtol=0)
    assert counts.mean().item() == pytest.approx(rate, abs=4 * math.sqrt(rate / n))
    # variance of the sample variance of a Poisson: (rate + 2 rate^2) / n
    assert counts.var().item() == pytest.approx(rate, abs=4 * math.sqrt((rate + 2 * rate**2) / n))


def test_impulse_noise_replaces_the_published_share_half_by_each():
    images = torch.full((40, 1, 50, 50), 0.5)
    out = corrupt(images, "impulse_noise", 4)
    n = images.numel()
    for value in (0.0, 1.0):
        assert (out == value).float().mean().item() == pytest.approx(0.025, abs=4 * math.sqrt(0.025 / n))
    assert ((out == 0) | (out == 1) | (out == 0.5)).all()


def test_contrast_shrinks_towards_the_mean_of_each_channel(colour):
    mean = colour.mean((2, 3), keepdim=True)
    torch.testing.assert_close(corrupt(colour, "contrast", 3), (colour - mean) * 0.4 + mean)


def test_brightness_adds_to_the_value_in_hsv(colour):
    from matplotlib.colors import hsv_to_rgb, rgb_to_hsv

    hsv = rgb_to_hsv(colour.permute(0, 2, 3, 1).numpy())
    hsv[..., 2] = np.clip(hsv[..., 2] + 0.2, 0, 1)
    expected = hsv_to_rgb(hsv).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(corrupt(colour, "brightness", 4).numpy(), expected, atol=1e-12)
    grey = colour[:, :1]
    torch.testing.assert_close(corrupt(grey, "brightness", 4), (grey + 0.2).clamp(max=1))
    torch.testing.assert_close(corrupt(torch.zeros(1, 3, 4, 4), "brightness", 1), torch.full((1, 3, 4, 4), 0.05))


def test_fog_adds_a_cloud_and_keeps_the_maximum(colour):
    black = corrupt(torch.zeros(2, 1, 8, 8), "fog", 5)
    torch.testing.assert_close(black, torch.zeros_like(black))  # nothing is brighter than its maximum
    white = torch.ones(1, 1, 32, 32)
    cloud = corrupt(white, "fog", 1) * 1.2 / 0.2 - 1 / 0.2  # (1 + a c) / (1 + a), solved for c
    torch.testing.assert_close(cloud.amin().item(), 0.0, atol=1e-5, rtol=0)
    torch.testing.assert_close(cloud.amax().item(), 1.0, atol=1e-5, rtol=0)
    again = plasma(4, 32, 2.5, generator=generator(Purpose.CORRUPTION, 0))[:, None, :32, :24].double()
    brightest = colour.amax((1, 2, 3), keepdim=True)
    torch.testing.assert_close(corrupt(colour, "fog", 3), (colour + 0.75 * again) * brightest / (brightest + 0.75))


def test_plasma_is_smoother_for_a_larger_decay():
    def roughness(decay):
        field = plasma(200, 32, decay, generator=torch.Generator().manual_seed(0))
        return (field - field.roll(1, 1)).square().mean().item()

    assert roughness(3.0) < 0.75 * roughness(1.75)
    # with one halving nothing is random but the three new points: 0, and noise of the same amplitude
    tiny = plasma(500, 2, 3.0, generator=torch.Generator().manual_seed(0))
    assert tiny.shape == (500, 2, 2)
    torch.testing.assert_close(tiny.amin((1, 2)), torch.zeros(500))
    torch.testing.assert_close(tiny.amax((1, 2)), torch.ones(500))


@pytest.mark.parametrize(("severity", "share"), [(1, 0.95), (2, 0.9), (3, 0.85), (4, 0.75), (5, 0.65)])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 24)])
def test_pixelate_is_pillows_box_filter(severity, share, size):
    images = torch.rand(1, 1, *size, generator=torch.Generator().manual_seed(0))
    height, width = size
    picture = Image.fromarray(images[0, 0].numpy())
    small = picture.resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    expected = np.asarray(small.resize((width, height), Image.Resampling.BOX))
    np.testing.assert_allclose(corrupt(images, "pixelate", severity)[0, 0].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("size_in", "size_out"), [(8, 7), (7, 8), (32, 20), (5, 5), (224, 145)])
def test_box_filter_matrices_average(size_in, size_out):
    weights = _box_filter(size_in, size_out)
    torch.testing.assert_close(weights.sum(1), torch.ones(size_out, dtype=torch.float64))
    picture = Image.fromarray(np.linspace(0, 1, size_in, dtype=np.float32)[None])
    expected = np.asarray(picture.resize((size_out, 1), Image.Resampling.BOX))[0]
    np.testing.assert_allclose(weights.numpy() @ np.linspace(0, 1, size_in), expected, atol=1e-6)


def test_jpeg_of_one_three_and_more_channels(colour):
    import io

    def by_hand(pixels):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=50)
        return np.asarray(Image.open(buffer)) / 255

    coded = (colour * 255).round().to(torch.uint8)
    expected = by_hand(coded[1].permute(1, 2, 0).numpy()).transpose(2, 0, 1)
    np.testing.assert_allclose(corrupt(colour, "jpeg", 4)[1].numpy(), expected, atol=1e-12)
    grey = corrupt(colour[:, :1], "jpeg", 4)
    np.testing.assert_allclose(grey[2, 0].numpy(), by_hand(coded[2, 0].numpy()), atol=1e-12)
    two = corrupt(colour[:, :2], "jpeg", 4)
    torch.testing.assert_close(two[:, :1], grey)
    nearly = _jpeg(colour[:, :1], 100, torch.Generator())  # rounding twice to one byte
    torch.testing.assert_close(nearly, colour[:, :1], atol=2 / 255, rtol=0)


def test_the_defocus_kernel_at_the_published_size():
    from scipy.ndimage import convolve1d

    published = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    for radius, softness in published:
        ticks = np.arange(-8, 9)
        disc = (ticks[:, None] ** 2 + ticks**2 <= radius**2).astype(float)
        gauss = np.exp(-0.5 * (np.array([-1, 0, 1]) / softness) ** 2)
        for axis in (0, 1):
            disc = convolve1d(disc, gauss / gauss.sum(), axis=axis, mode="constant")
        disc /= disc.sum()
        kernel = defocus_kernel(radius, softness, 1.0).numpy()
        margin = (17 - len(kernel)) // 2
        np.testing.assert_allclose(np.pad(kernel, margin), disc, atol=1e-12)


@pytest.mark.parametrize("ratio", [1 / 32, 0.25, 28 / 32, 1.0, 1.5, 7.0])
def test_defocus_kernels_sum_to_one_are_symmetric_and_scale_in_width(ratio):
    kernel = defocus_kernel(1.5, 0.1, ratio)
    torch.testing.assert_close(kernel.sum().item(), 1.0)
    torch.testing.assert_close(kernel, kernel.T)
    torch.testing.assert_close(kernel, kernel.flip(0))
    places = torch.arange(len(kernel)) - len(kernel) // 2
    variance = (kernel.sum(0) * places**2).sum().item()
    if ratio > 2:  # that of a disc of radius 1.5 is radius^2 / 4 along an axis
        assert variance / ratio**2 == pytest.approx(1.5**2 / 4, rel=0.05)
    assert variance > 0


def test_defocus_is_a_mirrored_convolution(colour):
    kernel = defocus_kernel(1.5, 0.1, 24 / 32).numpy()
    expected = ndimage.convolve(colour[2, 1].numpy(), kernel, mode="mirror")
    np.testing.assert_allclose(corrupt(colour, "defocus_blur", 5)[2, 1].numpy(), expected, atol=1e-12)


def test_motion_blur_spreads_a_point_along_one_side_of_a_line():
    points = torch.zeros(50, 1, 65, 65, dtype=torch.float64)
    points[:, :, 32, 32] = 1
    blurred = corrupt(points, "motion_blur", 5, seed=3)[:, 0]
    torch.testing.assert_close(blurred.sum((1, 2)), torch.ones(50, dtype=torch.float64))
    ticks = torch.arange(65, dtype=torch.float64) - 32
    x, y = (blurred.sum(1) * ticks).sum(1), (blurred.sum(2) * ticks).sum(1)
    # a half Gaussian of scale 2.5 * 65 / 32 pixels on the lattice of pixels, cut where its weight is 4e-6
    scale, step = 2.5 * 65 / 32, 1.0
    taps = np.arange(0, 5 * scale, step)
    weights = np.exp(-0.5 * (taps / scale) ** 2)
    expected = float((weights * taps).sum() / weights.sum())
    np.testing.assert_allclose(torch.hypot(x, y).numpy(), expected, rtol=1e-3)
    assert (torch.atan2(y.abs(), x.abs()) <= math.pi / 4 + 1e-6).all()
    assert (x < 0).all()
    assert len({round(value, 6) for value in torch.atan2(y, -x).tolist()}) == 50


def test_blurs_leave_a_flat_image_as_it_is():
    flat = torch.full((2, 3, 28, 28), 0.7, dtype=torch.float64)
    for name in ("defocus_blur", "motion_blur", "pixelate"):
        torch.testing.assert_close(corrupt(flat, name, 5), flat)


def test_rotation_by_quarter_turns_is_exact():
    images = torch.rand(4, 2, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    turned = rotate(images, torch.tensor([0.0, 90.0, 180.0, -90.0]))
    for i, quarters in enumerate((0, 1, 2, -1)):
        torch.testing.assert_close(turned[i], torch.rot90(images[i], quarters, (1, 2)))


@pytest.mark.parametrize("degrees", [15.0, -75.0])
def test_rotation_of_a_rectangle_keeps_lengths(degrees):
    images = torch.rand(1, 1, 12, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    angle = math.radians(degrees)
    # from output (row, column) to input: the inverse turn about the centre, rows counting downwards
    matrix = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    centre = np.array([5.5, 9.5])
    offset: Any = centre - matrix @ centre
    expected = ndimage.affine_transform(images[0, 0].numpy(), matrix, offset=offset, order=1, mode="grid-constant")
    np.testing.assert_allclose(rotate(images, torch.tensor([degrees]))[0, 0].numpy(), expected, atol=1e-12)


def test_rotation_turns_to_both_sides():
    images = torch.rand(30, 1, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = corrupt(images, "rotation", 2)
    left = rotate(images, torch.full((30,), 30.0))
    right = rotate(images, torch.full((30,), -30.0))
    to_left = torch.isclose(out, left).flatten(1).all(1)
    assert (to_left ^ torch.isclose(out, right).flatten(1).all(1)).all()
    assert 5 < to_left.sum() < 25


def test_translation_by_whole_pixels_is_a_roll_with_black_edges():
    images = torch.rand(2, 3, 8, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    right, down = torch.tensor([3.0, 0.0]).double(), torch.tensor([-2.0, 1.0]).double()
    moved = translate(images, right, down)
    expected = images[0].roll((-2, 3), (1, 2))
    torch.testing.assert_close(moved[0, :, :-2, 3:], expected[:, :-2, 3:])
    torch.testing.assert_close(moved[0, :, -2:], torch.zeros(3, 2, 10, dtype=torch.float64))
    torch.testing.assert_close(moved[0, :, :, :3], torch.zeros(3, 8, 3, dtype=torch.float64))
    torch.testing.assert_close(moved[1, :, 1:], images[1, :, :-1])


def test_translation_moves_by_the_stated_share():
    points = torch.zeros(40, 1, 21, 21, dtype=torch.float64)
    points[:, :, 10, 10] = 1
    moved = corrupt(points, "translation", 5)[:, 0]
    ticks = torch.arange(21, dtype=torch.float64) - 10
    x, y = (moved.sum(1) * ticks).sum(1), (moved.sum(2) * ticks).sum(1)
    np.testing.assert_allclose(torch.hypot(x, y).numpy(), 0.25 * 21, rtol=1e-6)
    assert min((x > 0).sum(), (x < 0).sum(), (y > 0).sum(), (y < 0).sum()) > 8


def test_corrupted_data_is_standardised_by_the_training_statistics():
    data = load("digits")
    inputs, targets = corrupt_data(data, "contrast", 5, limit=50)
    raw = data.standardise.inverse(data.test.inputs[:50])
    mean = raw.mean((2, 3), keepdim=True)
    torch.testing.assert_close(data.standardise.inverse(inputs), (raw - mean) * 0.15 + mean, atol=1e-5, rtol=0)
    assert torch.equal(targets, data.test.targets[:50])
    assert len(corrupt_data(data, "fog", 1).inputs) == 360
    inputs, _ = corrupt_data(data, "impulse_noise", 5, seed=3, limit=50)
    torch.testing.assert_close(
        data.standardise.inverse(inputs), corrupt(raw.clamp(0, 1), "impulse_noise", 5, seed=3), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("images", "name", "severity", "error", "message"),
    [
        (torch.zeros(1, 1, 8, 8), "fogg", 1, ValueError, "Did you mean fog"),
        (torch.zeros(1, 1, 8, 8), "fog", 6, ValueError, "`severity` must be 1, 2, 3, 4 or 5; got 6"),
        (torch.zeros(8, 8), "fog", 1, ValueError, r"must have the shape \(B, C, H, W\); got \(8, 8\)"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "fog", 1, TypeError, "got torch.uint8. Divide byte images by 255"),
        (torch.full((1, 1, 8, 8), 1.5), "fog", 1, ValueError, "from 1.5 to 1.5. Undo their standardisation"),
        (torch.full((1, 1, 8, 8), float("nan")), "fog", 1, ValueError, "from nan to nan"),
    ],
)
def test_wrong_requests_are_refused(images, name, severity, error, message):
    with pytest.raises(error, match=message):
        corrupt(images, name, severity)


def test_data_without_images_is_refused():
    with pytest.raises(ValueError, match=r"Corruptions are for images; `two_moons` has rows of shape \(2,\)"):
        corrupt_data(load("two_moons"), "fog", 1)
