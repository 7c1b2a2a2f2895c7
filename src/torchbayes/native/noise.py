"""Standard normal numbers that are a pure function of (seed, stream, position).

z = sqrt(−2 log u₁) (cos 2πu₂, sin 2πu₂), the method of Box and Muller (1958), with u₁ and u₂ from the words of the
counter-based generator Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2,
3"). The key is the seed, the counter is (block, stream). A block is four float32 or two float64 numbers:

- float32: (u₁, u₂) = ((w₀ + ½) / 2³², w₁ / 2³²) and the same of w₂ and w₃; |z| ≤ sqrt(66 log 2) = 6.7637;
- float64: u₁ = (n + ½) / 2⁵², n the top 52 bits of w₀w₁, and u₂ = the top 53 bits of w₂w₃ / 2⁵³;
  |z| ≤ sqrt(106 log 2) = 8.5717.

On a CPU a kernel computes them (normal.hpp), elsewhere or without a compiler tensor operations do. Both use
polynomials for log, sin and cos, and only operations that IEEE 754 rounds in one way, in the same order. So the
numbers are the same bits whatever the number of threads, the processor and the implementation.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

from torchbayes.native.build import DTYPES, suffixed, typed

LEAST = 1e-20  # smallest variance whose root is differentiated
_LOW = 0xFFFFFFFF
_MULTIPLIERS, _WEYL, _ROUNDS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 10
_BLOCKS_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 20}  # in tensor operations, each about 20 times 8 bytes


@dataclass(frozen=True)
class _Format:
    """Constants that depend on the dtype, the same as in normal.hpp."""

    word: torch.dtype  # integers of the same size
    fraction: int  # bits of a fraction
    radius: int  # bits of u₁
    angle: int  # bits of u₂
    root_half: int  # the bits of sqrt(½)
    log: tuple[float, ...]  # P of log((1 + s)/(1 − s)) = 2s (1 + s² P(s²)) for |s| ≤ (√2 − 1)/(√2 + 1)
    sine: tuple[float, ...]  # P of sin(πy/4) = y P(y²) for |y| ≤ 1
    cosine: tuple[float, ...]  # P of cos(πy/4) = P(y²) for |y| ≤ 1


_FORMATS = {
    torch.float32: _Format(
        torch.int32,
        fraction=23,
        radius=32,
        angle=32,
        root_half=0x3F3504F3,
        log=(0.333333433, 0.199943587, 0.147910759),
        sine=(0.785398185, -0.0807454363, 0.00249000709, -3.59545083e-05),
        cosine=(1.0, -0.308425128, 0.0158543382, -0.000325961388, 3.54196686e-06),
    ),
    torch.float64: _Format(
        torch.int64,
        fraction=52,
        radius=52,
        angle=53,
        root_half=0x3FE6A09E667F3BCD,
        log=(
            0.3333333333333335,
            0.19999999999949222,
            0.1428571431319992,
            0.11111105536377174,
            0.09091446612256726,
            0.0766579839009192,
            0.07308937390251663,
        ),
        sine=(
            0.7853981633974483,
            -0.08074551218828054,
            0.002490394570188846,
            -3.6576204158923915e-05,
            3.133616225626818e-07,
            -1.7571500918839738e-09,
            6.877366300710867e-12,
        ),
        cosine=(
            1.0,
            -0.30842513753404244,
            0.015854344243815488,
            -0.0003259918869271997,
            3.5908604474490503e-06,
            -2.4611366239154325e-08,
            1.1500679775988635e-10,
            -3.863159449975978e-13,
        ),
    ),
}


def fill_normal(out: Tensor, *, seed: int, stream: int) -> Tensor:
    """Fill a tensor in place with standard normal numbers, a function of (seed, stream, position) alone, and return it.

    The tensor is contiguous, float32 or float64, and requires no gradients; seed and stream are below 2⁶⁴. Numbers of
    different seeds or streams are independent. A shorter tensor holds the first numbers of a longer one of the same
    dtype, in the order of memory. The float32 and float64 numbers of the same seed and stream are neither equal nor
    independent. Raises a TypeError for another dtype or no integer; a ValueError for another tensor or a number out
    of range.
    """
    return _fill(out, (1, out.numel()), [seed], stream)


def fill_normal_rows(out_MD: Tensor, seeds: Sequence[int], stream: int) -> Tensor:
    """Fill each row as `fill_normal` would with its own seed, all in one call, and return the tensor.

    Row m is `fill_normal(out_MD[m], seed=seeds[m], stream=stream)` exactly, so a member's numbers do not depend on
    the others. Raises a ValueError if there is not one row for each seed, and errors as `fill_normal` does.
    """
    if out_MD.ndim == 0 or len(out_MD) != len(seeds):
        raise ValueError(
            f"`out_MD` must have a row for each of the {len(seeds)} seeds; got shape {tuple(out_MD.shape)}. "
            "Pass one seed per row."
        )
    return _fill(out_MD, (len(seeds), out_MD[0].numel() if len(seeds) else 0), seeds, stream)


def fill_signs(out: Tensor, *, seed: int, stream: int) -> Tensor:
    """Fill a tensor in place with 1 and −1, each by a bit of the generator: a function of (seed, stream, position).

    Bit i of word w of block b is the sign of number 128 b + 32 w + i: 0 for 1, 1 for −1. The stream must not be one
    of normals under the same seed. The tensor is returned; it may have any floating-point dtype, and requires no
    gradients.
    """
    keys, stream, count = keys_of((seed,)), _integer("stream", stream), out.numel()
    library = _library() if out.device.type == "cpu" and out.dtype == torch.float32 and out.is_contiguous() else None
    if library is not None:
        library.fill_signs(out.data_ptr(), count, keys, stream)
        torch.autograd.graph.increment_version(out)
        return out
    block = torch.arange(-(-count // 128), device=out.device)
    words = _words(block & _LOW, block >> 32, (stream & _LOW, stream >> 32), _halves((seed,), out.device))
    bits = torch.stack(words, -1).view(-1, 1) >> torch.arange(32, device=out.device) & 1
    return out.copy_((1 - 2 * bits).flatten()[:count].view(out.shape))


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Return the four words of one block of Philox4x32-10, from which the numbers are made.

    All words have 32 bits, least significant first. The counter has four, block and then stream; the key has two.
    """
    library = _library()
    if library is None:
        low, high, *seed = (torch.tensor([word]) for word in (*counter[:2], *key))
        return [int(word) for word in _words(low, high, counter[2:], seed)]
    block = (ctypes.c_uint32 * 4)()
    library.philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), block)
    return list(block)


def perturb(mean: Tensor, variance: Tensor, *, seed: int, stream: int) -> None:
    """Add noise of given variances to numbers in place: m ← m + √v ∘ ζ and v ← ζ/√v, 0 where v is next to 0.

    The noise ζ is that of `fill_normal`; the ratio is what derivatives by variances need.
    """
    supported = mean.device.type == "cpu" and mean.dtype in DTYPES and mean.is_contiguous() and variance.is_contiguous()
    if supported and (library := _mean_field()) is not None:
        numbers = (mean.numel(), seed, stream, LEAST, torch.get_num_threads())
        getattr(library, suffixed("perturb", mean.dtype))(mean.data_ptr(), variance.data_ptr(), *numbers)
        return
    dtype = torch.promote_types(mean.dtype, torch.float32)
    noise = fill_normal(torch.empty(mean.shape, dtype=dtype, device=mean.device), seed=seed, stream=stream)
    perturb_by(mean, variance, noise.to(mean.dtype))


def perturb_by(mean: Tensor, variance: Tensor, noise: Tensor) -> None:
    """Change numbers and variances as `perturb` does, with given noise."""
    certain = variance < LEAST
    root = variance.clamp_min_(LEAST).sqrt_()
    mean.addcmul_(root, noise)
    torch.div(noise, root, out=variance).masked_fill_(certain, 0)


def _fill(out: Tensor, shape: tuple[int, int], seeds: Sequence[int], stream: int) -> Tensor:
    """Return `out`, filled as rows of the given shape (M, D)."""
    _check_tensor(out)
    keys, stream = keys_of(tuple(seeds)), _integer("stream", stream)
    library = _library() if out.device.type == "cpu" else None
    if out.numel() == 0:
        return out
    if library is None:
        _fill_by_tensors(out.detach().view(shape), list(keys), stream)
        return out
    function = getattr(library, suffixed("fill_normal", out.dtype))
    function(out.data_ptr(), *shape, keys, stream, torch.get_num_threads())
    torch.autograd.graph.increment_version(out)  # tells autograd, as any operation in place does
    return out


def _check_tensor(out: Tensor) -> None:
    """Check that a tensor is float32 or float64, contiguous, and does not require gradients."""
    if out.dtype not in _FORMATS:
        raise TypeError(f"`out` must be float32 or float64; got {out.dtype}. Fill a float32 tensor and convert it.")
    if not out.is_contiguous():
        raise ValueError(
            f"`out` must be contiguous; got shape {tuple(out.shape)} with strides {out.stride()}. "
            "Fill a new tensor and copy it."
        )
    if out.requires_grad:
        raise ValueError("`out` must not require gradients; got a tensor that does. Pass out.detach().")


@lru_cache(maxsize=16)
def keys_of(seeds: tuple[int, ...]) -> ctypes.Array[ctypes.c_uint64]:
    """Return seeds as the kernel takes them; cached, because they are the same at every step."""
    return (ctypes.c_uint64 * len(seeds))(*(_integer("seed", seed) for seed in seeds))


def _integer(name: str, value: int) -> int:
    """Return a seed or stream as an integer, after checking that it fits into 64 bits without sign."""
    try:
        integer = operator.index(value)
    except TypeError as error:
        raise TypeError(f"`{name}` must be an integer; got {value!r}. Mix integers into one with `mix`.") from error
    if not 0 <= integer < 1 << 64:
        raise ValueError(f"`{name}` must lie in 0..2**64 - 1; got {integer}. Mix it into a seed with `mix`.")
    return integer


@cache
def _library() -> ctypes.CDLL | None:
    """Return the compiled kernel, or None without one; tried once, because a compiler may fail slowly."""
    pointer, integer, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
    arguments = {
        "fill_normal": (pointer, integer, integer, pointer, word, integer),
        "fill_signs": (pointer, integer, pointer, word),
        "philox": (pointer, pointer, pointer),
    }
    return typed("noise", arguments)


@cache
def _mean_field() -> ctypes.CDLL | None:
    pointer, integer, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64
    return typed("mean_field", {"perturb": (pointer, pointer, integer, word, word, ctypes.c_double, integer)})


def _fill_by_tensors(out_MD: Tensor, seeds: Sequence[int], stream: int) -> None:
    """Fill rows by tensor operations, in chunks of blocks to bound memory."""
    members, size = out_MD.shape
    per_block = 16 // out_MD.element_size()
    blocks = -(-size // per_block)
    limit = _BLOCKS_AT_ONCE.get(out_MD.device.type, _BLOCKS_AT_ONCE["cuda"])
    columns, rows = min(blocks, limit), max(1, limit // blocks)
    low_M1, high_M1 = _halves(tuple(seeds), out_MD.device)
    for at in range(0, blocks, columns):
        block = torch.arange(at, min(at + columns, blocks), device=out_MD.device)
        for row in range(0, members, rows):
            key = low_M1[row : row + rows], high_M1[row : row + rows]
            words = _words(block & _LOW, block >> 32, (stream & _LOW, stream >> 32), key)
            into = out_MD[row : row + rows, at * per_block : (at + columns) * per_block]
            into.copy_(_numbers(words, out_MD.dtype).flatten(-2)[:, : into.shape[1]])


@lru_cache(maxsize=16)
def _halves(seeds: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the lower and upper words of seeds, (M, 1); cached, to avoid waiting for a copy to a GPU at every step."""
    halves = ([seed & _LOW for seed in seeds], [seed >> 32 for seed in seeds])
    low_M1, high_M1 = (torch.tensor(half, device=device).unsqueeze(1) for half in halves)
    return low_M1, high_M1


def _words(low: Tensor, high: Tensor, stream: Sequence[int], key: Sequence[Tensor]) -> list[Tensor]:
    """Return the four words of Philox4x32-10 in int64: blocks (B,), keys (M, 1), words (M, B)."""
    k0, k1 = key
    c0, c1, c2, c3 = low, high, torch.full_like(low, stream[0]), torch.full_like(low, stream[1])
    for _ in range(_ROUNDS):
        # Products of 64 bits wrap around into the sign; all bits are right if factors have empty upper halves.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = (p1 >> 32).bitwise_xor_(c1).bitwise_xor(k0).bitwise_and_(_LOW)
        c2 = (p0 >> 32).bitwise_xor_(c3).bitwise_xor(k1).bitwise_and_(_LOW)
        c1, c3 = p1, p0
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return [c0, c1 & _LOW, c2, c3 & _LOW]


def _numbers(words: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Return the numbers (M, B, 4) or (M, B, 2) of the words of B blocks."""
    w0, w1, w2, w3 = words
    if dtype == torch.float32:
        pairs = [*_box_muller(w0, w1, dtype), *_box_muller(w2, w3, dtype)]
    else:
        pairs = [*_box_muller(w0 << 20 | w1 >> 12, w2 << 21 | w3 >> 11, dtype)]
    return torch.stack(pairs, -1)


def _box_muller(radius: Tensor, angle: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return both numbers of u₁ = (radius + ½) / 2^`radius` and u₂ = angle / 2^`angle`."""
    form = _FORMATS[dtype]
    quarter = 1 << (form.angle - 2)
    r = _root(_squared_radius(radius, dtype))
    turned = angle + quarter // 2
    y = ((turned & (quarter - 1)) - quarter // 2).to(dtype) * (2 / quarter)
    square = y * y
    sine, cosine = y * _polynomial(form.sine, square), _polynomial(form.cosine, square)
    odd = (turned & quarter) != 0
    first, second = r * torch.where(odd, sine, cosine), r * torch.where(odd, cosine, sine)
    first = torch.where(((turned + quarter) & (2 * quarter)) != 0, -first, first)
    return first, torch.where((turned & (2 * quarter)) != 0, -second, second)


def _squared_radius(n: Tensor, dtype: torch.dtype) -> Tensor:
    """Return −2 log u₁, u₁ = m 2^−e with m in [√½, √2): log m = 2s (1 + s² P(s²)), s = (m − 1)/(m + 1)."""
    form = _FORMATS[dtype]
    unit = 1 << form.fraction
    shifted = (n.to(dtype) + 0.5).view(form.word) - (form.root_half - unit)
    e = (form.radius + 1 - (shifted >> form.fraction)).to(dtype)
    f = ((shifted & (unit - 1)) + form.root_half).view(dtype) - 1.0
    if dtype == torch.float32:  # n was rounded; the exact difference keeps all digits close to 1, and f below 0
        f = torch.where(e == 0, ((n ^ _LOW).to(dtype) + 0.5) * -(2.0**-32), f)
    s = f / (f + 2.0)
    z = s * s
    return e * 1.3862943611198906 - (s + s * (z * _polynomial(form.log, z))) * 4.0


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * x + coefficient
    return total


def _root(x: Tensor) -> Tensor:
    """Return the square root, correctly rounded; by NumPy on a CPU, because PyTorch's is not in the last bit."""
    if x.device.type == "cpu":
        return torch.from_numpy(np.sqrt(x.numpy()))
    return x.sqrt()
