"""Forecasters in files: they forecast as before, from the end of their series and from others like it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import torchbayes as tb
from tests.forecasting.test_forecasts import autoregressive, quick
from torchbayes import forecasting
from torchbayes.forecasting import Series
from torchbayes.sklearn import BayesianRegressor
from torchbayes.sklearn import save as save_estimator

_COUNT = 60
_TIMES = {
    "no times": None,
    "hours of a zone": pd.date_range("2026-03-28", periods=_COUNT, freq="h", tz="Europe/Vienna"),
    "months": pd.date_range("2021-01-01", periods=_COUNT, freq="MS"),
    "ends of quarters": pd.date_range("2011-03-31", periods=_COUNT, freq="QE"),
    "days of a zone": pd.date_range("2026-02-07", periods=_COUNT, freq="D", tz="Europe/Vienna"),
    "business days": pd.bdate_range("2026-01-01 16:00", periods=_COUNT, normalize=False),
}


def _series(times: pd.DatetimeIndex | None, count: int = _COUNT) -> Series:
    values = np.stack([autoregressive(_COUNT), autoregressive(_COUNT, seed=1)], axis=1)[:count]
    known = np.arange(_COUNT + 3) % 5
    return Series.of(values, known[: count + 3], times if times is None else times[:count])


@pytest.mark.filterwarnings("ignore:.*should not be trusted")  # two epochs are short, and the file says so too
@pytest.mark.parametrize("name", _TIMES)
def test_a_forecaster_from_a_file_forecasts_as_before(name: str, tmp_path: Path) -> None:
    """The end it holds has two times: July and August, whose distance alone would look like steps of 31 days."""
    series, earlier = _series(_TIMES[name], 56), _series(_TIMES[name], 50)
    fitted = quick(context=2, season=1).fit(series)
    again = forecasting.load(fitted.save(tmp_path / "f.safetensors"))
    assert again.problems == fitted.problems
    for given in (None, earlier):
        now, before = again.forecast(given), fitted.forecast(given)
        pd.testing.assert_frame_equal(now.frame(), before.frame(), check_exact=True)
    assert len(again.series) == fitted.rows.context
    assert again.series.season == series.season
    again.save(tmp_path / "again.safetensors")
    assert forecasting.load(tmp_path / "again.safetensors").horizon == 3


def test_objects_are_given_again_and_other_files_are_refused(tmp_path: Path) -> None:
    values = autoregressive(_COUNT)
    fitted = quick(network=nn.Linear, likelihood=tb.likelihoods.Gaussian(1.0, outputs=3)).fit(values)
    path = fitted.save(tmp_path / "f.safetensors")
    with pytest.raises(ValueError, match=r"fitted with a network that is not in its file. Give `network`"):
        forecasting.load(path)
    again = forecasting.load(path, network=nn.Linear, likelihood=tb.likelihoods.Gaussian(1.0, outputs=3))
    np.testing.assert_array_equal(again.forecast().median, fitted.forecast().median)

    regressor = BayesianRegressor(method=tb.MAP(epochs=1)).fit(np.arange(20.0)[:, None], np.arange(20.0))
    with pytest.raises(ValueError, match="holds no forecaster"):
        forecasting.load(save_estimator(regressor, tmp_path / "table.safetensors"))
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged"):
        forecasting.load(tmp_path / "damaged.safetensors", network=nn.Linear)
    with pytest.raises(FileNotFoundError):
        forecasting.load(tmp_path / "none.safetensors")


def test_zones_without_a_name_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    times = pd.date_range("2026-01-01", periods=_COUNT, freq="D", tz="dateutil/Europe/Vienna")
    fitted = quick(context=6, season=1).fit(pd.Series(autoregressive(_COUNT), index=times))
    with pytest.raises(ValueError, match=r"time zone .* has no name .*tz_convert"):
        fitted.save(tmp_path / "f.safetensors")
    assert not [*tmp_path.iterdir()]


def test_the_file_holds_the_end_of_the_series_alone(tmp_path: Path) -> None:
    values = autoregressive(_COUNT)
    path = quick().fit(values).save(tmp_path / "f.safetensors")
    tensors, _ = tb.posteriors.files.read_tensors(path)
    np.testing.assert_array_equal(tensors["forecaster.values"][:, 0], values[-6:])
    assert not any(torch.isin(torch.tensor(values[:-6]), t.double().flatten()).any() for t in tensors.values())
