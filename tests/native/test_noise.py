"""Normal numbers by counter: known answers, a plain float64 evaluation, the same bits every way, and statistics."""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.oracles import assert_close
from torchbayes.native import build, noise
from torchbayes.native.build import load
from torchbayes.native.noise import fill_normal, fill_normal_rows, philox
from torchbayes.randomness.seeds import Purpose, mix

SEED, STREAM = 0x488516F644812E60, 7
BOTH = [torch.float32, torch.float64]
N = 1_000_000


@pytest.fixture(params=["kernel", "tensors"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the kernel, and with tensor operations in small blocks."""
    if request.param == "tensors":
        monkeypatch.setattr(noise, "_library", lambda: None)
        monkeypatch.setitem(noise._BLOCKS_AT_ONCE, "cpu", 300)
    elif noise._library() is None:
        pytest.skip("kernels cannot be built here")
    return request.param


@pytest.fixture
def anew() -> Iterator[None]:
    """Forget loaded libraries before and after a test."""
    load.cache_clear()
    noise._library.cache_clear()
    yield
    load.cache_clear()
    noise._library.cache_clear()


def normals(*shape: int, dtype: torch.dtype = torch.float32, seed: int = SEED, stream: int = STREAM) -> Tensor:
    return fill_normal(torch.full(shape, math.nan, dtype=dtype), seed=seed, stream=stream)


def plain_philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 as the paper writes it: swap the outer words of two products of 64 bits, and bump the key."""
    left, right = list(counter[:2]), list(counter[2:])
    for number in range(10):
        keys = [(k + number * weyl) % 2**32 for k, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        high_l, low_l = divmod(0xD2511F53 * left[0], 2**32)
        high_r, low_r = divmod(0xCD9E8D57 * right[0], 2**32)
        left, right = [high_r ^ left[1] ^ keys[0], low_r], [high_l ^ right[1] ^ keys[1], low_l]
    return left + right


def plain_words(blocks: int, seed: int = SEED, stream: int = STREAM) -> np.ndarray:
    """Return the words (blocks, 4) in uint64."""
    halves = [(value % 2**32, value >> 32) for value in (stream, seed)]
    return np.array([plain_philox((b, 0, *halves[0]), halves[1]) for b in range(blocks)], dtype=np.uint64)


def plain_normals(words: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Box-Muller in float64 with the functions of NumPy; log u is taken from the side where u is exact."""
    if dtype == torch.float32:
        n, angle, bits, turn = words[:, ::2], words[:, 1::2] / 2.0**32, 32, 2.0**32
    else:
        n = words[:, :1] << np.uint64(20) | words[:, 1:2] >> np.uint64(12)
        angle = (words[:, 2:3] << np.uint64(21) | words[:, 3:] >> np.uint64(11)) / 2.0**53
        bits, turn = 52, 2.0**52
    rest = np.uint64(2**bits - 1) - n
    log_u = np.where(n < rest, np.log((n + 0.5) / turn), np.log1p(-(rest + 0.5) / turn))
    radius = np.sqrt(-2 * log_u)
    return torch.from_numpy(np.stack([radius * cospi(2 * angle), radius * sinpi(2 * angle)], -1).reshape(-1))


def sinpi(x: np.ndarray) -> np.ndarray:
    """Return sin πx for x in [−½, 2), accurate close to its zeros: x − round(x) is exact."""
    whole = np.round(x)
    return np.where(whole == 1, -1, 1) * np.sin(np.pi * (x - whole))


def cospi(x: np.ndarray) -> np.ndarray:
    """Return cos πx for x in [0, 2): x − ½ is exact, where x + ½ is not."""
    return -sinpi(x - 0.5)


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),  # the digits of pi
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_known_answers_of_philox(counter: tuple[int, ...], key: tuple[int, ...], block: str, way: str):
    expected = [int(word, 16) for word in block.split()]
    assert plain_philox(counter, key) == expected
    assert philox(counter, key) == expected


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (SEED, STREAM), (2**64 - 1, 2**64 - 1), (2**32, 2**33 + 1)])
def test_numbers_are_those_of_a_plain_evaluation_in_float64(dtype: torch.dtype, seed: int, stream: int, way: str):
    expected = plain_normals(plain_words(1500, seed, stream), dtype)
    few_ulp = 4 * torch.finfo(dtype).eps
    assert_close(normals(len(expected), dtype=dtype, seed=seed, stream=stream), expected, rtol=few_ulp, atol=0)


@pytest.mark.parametrize("dtype", BOTH)
def test_words_at_the_edges_give_finite_numbers_of_full_precision(dtype: torch.dtype):
    edges = {0, 1, 2, 2**20, 2**31, 2**32 - 1}
    edges |= {part * 2**29 + near for part in range(8) for near in (-1, 0, 1) if part or near >= 0}  # eighths of a turn
    edges |= {int(2**32 * 0.5**0.5) + near for near in (-1, 0, 1)} | {2**32 - 2**k for k in range(1, 32)}  # u1 near 1
    words = np.array([[a, b, b, a] for a in sorted(edges) for b in sorted(edges)], dtype=np.uint64)
    actual = noise._numbers([torch.from_numpy(w.astype(np.int64)) for w in words.T], dtype).flatten()
    assert actual.isfinite().all()
    assert_close(actual, plain_normals(words, dtype), rtol=4 * torch.finfo(dtype).eps, atol=0)
    largest = {torch.float32: math.sqrt(66 * math.log(2)), torch.float64: math.sqrt(106 * math.log(2))}[dtype]
    assert actual.abs().max().item() == pytest.approx(largest, rel=4 * torch.finfo(dtype).eps)
    radii = actual.view(-1, 2).norm(dim=1)
    assert radii.min() > 0


@pytest.mark.parametrize("dtype", BOTH)
def test_kernel_and_tensor_operations_give_the_same_bits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    if noise._library() is None:
        pytest.skip("kernels cannot be built here")
    kernel = normals(1_000_003, dtype=dtype)
    monkeypatch.setattr(noise, "_library", lambda: None)
    assert torch.equal(kernel, normals(1_000_003, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "digest"),
    [(torch.float32, "38b0d8d37b2c2461"), (torch.float64, "bf25d0105a201510")],
)
def test_numbers_are_the_same_bits_on_every_machine(dtype: torch.dtype, digest: str, way: str):
    numbers = normals(50_001, dtype=dtype).numpy()
    assert hashlib.sha256(numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("dtype", BOTH)
def test_numbers_do_not_depend_on_threads(dtype: torch.dtype, way: str):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = normals(70_001, dtype=dtype)
        for count in (2, 3):
            torch.set_num_threads(count)
            assert torch.equal(normals(70_001, dtype=dtype), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", BOTH)
def test_numbers_depend_on_position_alone(dtype: torch.dtype, way: str):
    whole = normals(5005, dtype=dtype)
    assert torch.equal(normals(5, 7, 11, 13, dtype=dtype).flatten(), whole)
    for size in (1, 2, 3, 4, 5, 31, 33, 1023, 1024, 1025, 2049):
        assert torch.equal(normals(size, dtype=dtype), whole[:size])
    assert normals(dtype=dtype).item() == whole[0].item()  # a scalar
    inner = torch.zeros(6, 100, dtype=dtype)
    assert torch.equal(fill_normal(inner[2:4], seed=SEED, stream=STREAM).flatten(), whole[:200])
    assert_close(inner[[0, 1, 4, 5]], torch.zeros(4, 100))


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("shape", [(3, 2500), (5, 1), (2, 3, 5), (4,), (1, 1024), (40, 1030)])
def test_rows_are_the_numbers_of_each_seed_alone(dtype: torch.dtype, shape: tuple[int, ...], way: str):
    seeds = [mix(Purpose.MEMBER, 3, member) for member in range(shape[0])]
    out = torch.full(shape, math.nan, dtype=dtype)
    assert fill_normal_rows(out, seeds, STREAM) is out
    for row, seed in zip(out, seeds, strict=True):
        assert torch.equal(row, normals(*shape[1:], dtype=dtype, seed=seed))


def test_every_bit_of_seed_and_stream_changes_the_numbers(way: str):
    base = normals(1000)
    others = [normals(1000, seed=SEED ^ 1 << bit) for bit in range(64)]
    others += [normals(1000, stream=STREAM ^ 1 << bit) for bit in range(64)]
    for other in others:
        assert (other != base).float().mean() > 0.99
        assert abs(torch.corrcoef(torch.stack([base, other]))[0, 1].item()) < 5 / math.sqrt(1000)


@pytest.mark.parametrize("dtype", BOTH)
def test_moments_distribution_and_serial_correlation(dtype: torch.dtype):
    z = normals(N, dtype=dtype).double()
    assert abs(z.mean().item()) < 5 / math.sqrt(N)
    assert abs(z.square().mean().item() - 1) < 5 * math.sqrt(2 / N)
    assert abs((z**3).mean().item()) < 5 * math.sqrt(15 / N)
    assert abs((z**4).mean().item() - 3) < 5 * math.sqrt(96 / N)
    ranks = (torch.arange(N, dtype=torch.float64) + 0.5) / N
    distance = (torch.special.ndtr(z.sort().values) - ranks).abs().max().item() + 0.5 / N
    assert stats.kstwobign.sf(distance * math.sqrt(N)) > 1e-5  # Kolmogorov-Smirnov
    for values, variance in ((z, 1.0), (z.square() - 1, 2.0), (z.abs() - math.sqrt(2 / math.pi), 1 - 2 / math.pi)):
        for lag in range(1, 9):
            correlation = (values[lag:] @ values[:-lag]).item() / variance / (N - lag)
            assert abs(correlation) < 5 / math.sqrt(N - lag)


@pytest.mark.parametrize("dtype", BOTH)
def test_tails_hold_as_many_numbers_as_they_should(dtype: torch.dtype):
    streams, bounds = 16, torch.tensor([4.0, 5.0])
    out, counts = torch.empty(N, dtype=dtype), {(side, b): 0 for side in (-1, 1) for b in bounds.tolist()}
    for stream in range(streams):
        fill_normal(out, seed=2, stream=stream)
        for side, bound in counts:
            counts[side, bound] += int((out * side > bound).sum())
    for (_, bound), count in counts.items():
        expected = streams * N * stats.norm.sf(bound)  # 507 and 4.6
        assert min(stats.poisson.cdf(count, expected), stats.poisson.sf(count - 1, expected)) > 1e-5


@pytest.mark.parametrize("adjacent", ["seeds", "streams"])
@pytest.mark.parametrize("dtype", BOTH)
def test_adjacent_seeds_and_streams_are_uncorrelated(dtype: torch.dtype, adjacent: str):
    size, rows = 250_000, 8
    make: dict[str, Callable[[], Tensor]] = {
        "seeds": lambda: fill_normal_rows(torch.empty(rows, size, dtype=dtype), range(100, 100 + rows), STREAM),
        "streams": lambda: torch.stack([normals(size, dtype=dtype, stream=stream) for stream in range(rows)]),
    }
    out = make[adjacent]().double()
    for values in (out, out.square()):
        for shift in (0, 1, 2):
            matrix = torch.corrcoef(torch.cat([values[:, shift:], values[:, : size - shift]]))[:rows, rows:]
            assert (matrix - torch.diag(matrix.diagonal())).abs().max() < 5 / math.sqrt(size)


def test_a_tensor_that_autograd_saved_is_seen_to_have_changed(way: str):
    weight, out = torch.ones(5, requires_grad=True), normals(5)
    product = (weight * out).sum()
    fill_normal(out, seed=SEED, stream=STREAM + 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_no_numbers_are_no_error_and_the_global_generator_stays(way: str, untouched_rng: None):
    for shape in ((0,), (3, 0), (0, 3)):
        assert normals(*shape).shape == shape
        assert fill_normal_rows(torch.empty(shape), range(shape[0]), STREAM).shape == shape
    with torch.inference_mode():
        inside = normals(9)
    assert torch.equal(inside, normals(9))


@pytest.mark.parametrize(
    ("out", "seed", "stream", "error", "message"),
    [
        (torch.empty(4, 3).T, 1, 1, ValueError, r"contiguous; got shape \(3, 4\) with strides \(1, 3\)"),
        (torch.empty(4, dtype=torch.float16), 1, 1, TypeError, "must be float32 or float64; got torch.float16"),
        (torch.empty(4, dtype=torch.int64), 1, 1, TypeError, "must be float32 or float64; got torch.int64"),
        (torch.empty(4, requires_grad=True), 1, 1, ValueError, "must not require gradients"),
        (torch.empty(4), -1, 1, ValueError, r"`seed` must lie in 0..2\*\*64 - 1; got -1"),
        (torch.empty(4), 2**64, 1, ValueError, f"`seed` must lie in .* got {2**64}"),
        (torch.empty(4), 1, -3, ValueError, r"`stream` must lie in .* got -3"),
        (torch.empty(4), 0.5, 1, TypeError, r"`seed` must be an integer; got 0\.5"),
        (torch.empty(4), 1, "a", TypeError, "`stream` must be an integer; got 'a'"),
        (torch.empty(0), -1, 1, ValueError, "`seed` must lie in"),
    ],
)
def test_what_cannot_be_filled_is_refused(
    out: Tensor, seed: int, stream: int, error: type[Exception], message: str, way: str
):
    with pytest.raises(error, match=message):
        fill_normal(out, seed=seed, stream=stream)


def test_rows_and_seeds_must_be_as_many():
    with pytest.raises(ValueError, match=r"a row for each of the 2 seeds; got shape \(3, 4\)"):
        fill_normal_rows(torch.empty(3, 4), [1, 2], 0)
    with pytest.raises(ValueError, match=r"a row for each of the 1 seeds; got shape \(\)"):
        fill_normal_rows(torch.empty(()), [1], 0)


def test_without_kernels_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch, anew: None):
    expected = normals(1000)
    monkeypatch.setenv(build.ENVIRONMENT, "0")
    load.cache_clear()
    noise._library.cache_clear()
    assert torch.equal(normals(1000), expected)
    assert noise._library() is None


def test_the_kernel_needs_no_blas(monkeypatch: pytest.MonkeyPatch, anew: None):
    if noise._library() is None:
        pytest.skip("kernels cannot be built here")
    expected = normals(1000)

    def missing() -> None:
        raise build.UnavailableError("no BLAS")

    monkeypatch.setattr(build, "_blas", missing)
    load.cache_clear()
    noise._library.cache_clear()
    assert noise._library() is not None
    assert torch.equal(normals(1000), expected)
    with pytest.raises(build.UnavailableError, match="no BLAS"):
        load("dense")
