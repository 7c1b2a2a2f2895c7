"""The network for tables: every column is written in fixed features, then a multilayer perceptron follows.

A plain network fits a smooth function of standardised columns, and tables have steps, thresholds and heavy tails. Here
a column x becomes

    c(z) = z / √(1 + (z/3)²),  z = (x − median) / (q₇₅ − q₂₅)                          smooth clipping: −3 < c < 3
    e_t  = min(max((x − k_{t−1}) / (k_t − k_{t−1}), 0), 1),  t = 1 … T                  piecewise linear encoding

with knots k₀ < … < k_T at quantiles of the training rows, so that one linear layer behind them gives any piecewise
linear function of the column. The features are bounded, so that a row far outside of the training rows does not lead to
a prediction far outside. They have no weights: the encoding is data, in buffers, and every weight is one of an ordinary
linear layer, whose natural prior is `priors.FanInNormal`.

Sources: Gorishniy, Rubachev and Babenko (2022) for the encoding, there without bounds at both ends; Holzmüller,
Grinsztajn and Steinwart (2024) for scaling and clipping.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchbayes.checks import check_counts, check_kind, check_tensor, optional, seen
from torchbayes.networks.small import InputShape, mlp, num_features

_MOST_FEATURES = 1024  # with more columns each has fewer knots, down to none
_ROWS_A_BIN = 10  # least rows between two knots on average
_NARROWEST = 1e-6  # of the column's range: a bin that float32 still resolves in a standardised column


class ColumnEncoding(nn.Module):
    """The fixed features of columns: (B, C) -> (B, F), F = C + the number of bins + the number of marked columns.

    The first C features are c(z) of each column, in order; then come the e_t of all columns; then, for each column in
    which training rows have missing values (NaN), 1 where the value is missing and 0 elsewhere. A missing value is
    taken for the median. A constant column is 0.

    Attributes:
        centre: median of each column, (C,).
        factor: 1/(q₇₅ − q₂₅) of each column, (C,); 2/(max − min) where the quartiles coincide; 0 for a constant.
        column: number of the column that each bin belongs to, int64 (T,), T over all columns.
        lower: k_{t−1} of each bin, (T,).
        width: k_t − k_{t−1} of each bin, positive, (T,).
        marked: numbers of the columns whose missing values are marked, int64 (M,).
    """

    centre: Tensor
    factor: Tensor
    column: Tensor
    lower: Tensor
    width: Tensor
    marked: Tensor

    def __init__(
        self, centre: Tensor, factor: Tensor, *, column: Tensor, lower: Tensor, width: Tensor, marked: Tensor
    ) -> None:
        """Keep the numbers as buffers; they are the arguments too, so that the `state_dict` makes a copy.

        Raises:
            TypeError: if one is not a tensor.
            ValueError: if they have other shapes than stated, or numbers of columns that do not exist.
        """
        super().__init__()
        check_tensor("C", centre=centre, factor=factor)
        check_tensor("T", column=column, lower=lower, width=width)
        check_tensor("M", marked=marked)
        if factor.shape != centre.shape or not len(centre):
            raise ValueError(
                f"`centre` and `factor` must have a number for each column; got {len(centre)} and {len(factor)}."
            )
        if not len(column) == len(lower) == len(width):
            lengths = f"{len(column)}, {len(lower)} and {len(width)}"
            raise ValueError(f"`column`, `lower` and `width` must have a number for each bin; got {lengths}.")
        for name, numbers in {"column": column, "marked": marked}.items():
            if numbers.dtype != torch.int64 or ((numbers < 0) | (numbers >= len(centre))).any():
                raise ValueError(f"`{name}` must be int64 numbers of columns, from 0 to {len(centre) - 1}.")
        if not (width > 0).all():
            raise ValueError(f"`width` must be positive; got {width.min().item():g}.")
        self.register_buffer("centre", centre)
        self.register_buffer("factor", factor)
        self.register_buffer("column", column)
        self.register_buffer("lower", lower)
        self.register_buffer("width", width)
        self.register_buffer("marked", marked)

    @classmethod
    def fit(cls, inputs: Tensor, *, bins: int | None = None) -> ColumnEncoding:
        """Measure centres, factors and knots on training rows.

        A column of at most `bins` + 1 different values has a knot at each of them; one of two values has none, as the
        clipped column says all of it. Bins narrower than a millionth of the column's range are left out.

        Args:
            inputs: training rows, floating point (N, C), best standardised; NaN where a value is missing.
            bins: most bins of a column; 0 for none. None: one for every 10 rows, at most 16, and at most as many as
                keep the features of all columns below about 1,000.

        Returns:
            The encoding, of the dtype and on the device of the rows.

        Raises:
            TypeError: if the inputs are no tensor of floating point.
            ValueError: if these are not (N, C) with a row and a column at least, or one is infinite.
        """
        check_tensor("N", "C", inputs=inputs)
        optional(lambda **given: check_counts(least=0, **given), bins=bins)
        if not inputs.is_floating_point():
            raise TypeError(f"`inputs` must be floating point; got {inputs.dtype}. Convert them: inputs.float().")
        if not inputs.numel():
            raise ValueError(f"`inputs` must have a row and a column at least; got shape {tuple(inputs.shape)}.")
        if inputs.isinf().any():
            raise ValueError("`inputs` must be finite, or NaN where a value is missing; there are infinite ones.")
        rows, columns = inputs.shape
        most = min(16, rows // _ROWS_A_BIN, _MOST_FEATURES // columns) if bins is None else int(bins)
        values = inputs.detach().double().cpu().numpy()
        measured = [_measure(column[~np.isnan(column)], most) for column in values.T]
        knots = [of_column for _, _, of_column in measured]

        def as_inputs(numbers: Sequence[float] | np.ndarray) -> Tensor:
            return torch.as_tensor(np.asarray(numbers, dtype=np.float64)).to(inputs)

        def as_index(numbers: np.ndarray) -> Tensor:
            return torch.as_tensor(numbers.astype(np.int64), device=inputs.device)

        return cls(
            as_inputs([centre for centre, _, _ in measured]),
            as_inputs([factor for _, factor, _ in measured]),
            column=as_index(np.repeat(np.arange(columns), [max(len(k) - 1, 0) for k in knots])),
            lower=as_inputs(np.concatenate([k[:-1] for k in knots])),
            width=as_inputs(np.concatenate([np.diff(k) for k in knots])),
            marked=as_index(np.flatnonzero(np.isnan(values).any(0))),
        )

    @property
    def features(self) -> int:
        """F, the number of features."""
        return len(self.centre) + len(self.column) + len(self.marked)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features (..., F) of rows (..., C)."""
        absent = inputs.isnan()
        filled = torch.where(absent, self.centre, inputs)
        scaled = (filled - self.centre) * self.factor
        # hypot, as the square of a number far away would overflow
        clipped = scaled / torch.hypot(torch.ones_like(scaled), scaled / 3)
        steps = ((filled[..., self.column] - self.lower) / self.width).clamp(0, 1)
        return torch.cat([clipped, steps, absent[..., self.marked].to(inputs.dtype)], dim=-1)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"columns={len(self.centre)}, bins={len(self.column)}, marked={len(self.marked)}"


def tabular(
    input_shape: InputShape,
    num_outputs: int,
    *,
    encoding: ColumnEncoding | None = None,
    hidden: Sequence[int] = (128, 128),
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Sequential:
    """Return the network for tables: fixed features of the columns, then a multilayer perceptron.

        f(x) = mlp(encoding(x))

    The encoding has no weights and comes first; `network[2:]` is a plain stack of linear layers, which may as well be
    trained on rows that were encoded once, and which the library's kernel runs.

    Args:
        input_shape: shape of one row without the batch axis, or the number of its columns.
        num_outputs: K.
        encoding: of the columns, from `ColumnEncoding.fit(inputs)`. None: without knots, and for columns that are
            standardised: c(z) with z = x.
        hidden: widths of the hidden layers.
        activation: φ, one of `relu`, `tanh`, `swish`.
        dropout: probability that a hidden unit is dropped; no such layers if 0.

    Returns:
        A module (B, *input_shape) -> (B, K).

    Raises:
        TypeError: if the encoding is none.
        ValueError: if a size is not positive, the encoding is of another number of columns, `dropout` is not in [0, 1),
            or the activation is unknown.
    """
    columns = num_features(input_shape)
    if encoding is None:
        nothing, none = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
        encoding = ColumnEncoding(
            torch.zeros(columns), torch.ones(columns), column=none, lower=nothing, width=nothing, marked=none
        )
    check_kind(ColumnEncoding, "a ColumnEncoding, such as ColumnEncoding.fit(inputs)", encoding=encoding)
    if len(encoding.centre) != columns:
        raise ValueError(
            f"`encoding` must be of {columns} columns, as `input_shape` is {seen(input_shape)}; it is of "
            f"{len(encoding.centre)}."
        )
    flatten, *layers = mlp(encoding.features, num_outputs, hidden=hidden, activation=activation, dropout=dropout).to(
        encoding.centre.dtype
    )
    return nn.Sequential(flatten, encoding, *layers)


def _measure(values: np.ndarray, bins: int) -> tuple[float, float, np.ndarray]:
    """Return median, factor and knots of a column, of its values that are not missing; knots are none or 2 at least."""
    if not len(values):
        return 0.0, 0.0, np.empty(0)
    low, lower, median, upper, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    spread = high - low
    if spread <= 1e-12 * max(abs(low), abs(high)):  # constant up to rounding
        return float(median), 0.0, np.empty(0)
    factor = 1 / (upper - lower) if upper - lower > _NARROWEST * spread else 2 / spread
    different = np.unique(values)
    if bins < 1 or len(different) < 3:
        return float(median), float(factor), np.empty(0)
    knots = different if len(different) <= bins + 1 else np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
    apart = np.diff(knots, prepend=-np.inf) > _NARROWEST * spread
    return float(median), float(factor), knots[apart] if apart.sum() > 2 else np.empty(0)
