"""NUTS and HMC on statistical posteriors against blackjax: `python -m benchmarks.statistical`."""
