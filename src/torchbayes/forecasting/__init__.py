"""Time series: windows, forecasts by a posterior and by others, backtests, and intervals that adapt."""

from torchbayes.forecasting.adaptive import AdaptiveIntervals
from torchbayes.forecasting.backtest import Backtest, backtest
from torchbayes.forecasting.baselines import ETS, BoostedTrees, SeasonalNaive
from torchbayes.forecasting.bayesian import BayesianForecaster, load
from torchbayes.forecasting.forecast import QuantileForecast
from torchbayes.forecasting.rules import ACI, PID, DtACI
from torchbayes.forecasting.series import Series
from torchbayes.forecasting.windows import Windows, windows

__all__ = [
    "ACI",
    "ETS",
    "PID",
    "AdaptiveIntervals",
    "Backtest",
    "BayesianForecaster",
    "BoostedTrees",
    "DtACI",
    "QuantileForecast",
    "SeasonalNaive",
    "Series",
    "Windows",
    "backtest",
    "load",
    "windows",
]
