"""Claims from papers, put to the test: the contents of the distribution `torchbayes-experiments`, if installed.

`names`, `get`, `reproduce`, `Experiment`, `Findings`, `Verdict` and others are those of `torchbayes_experiments`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name of the distribution. Raises ModuleNotFoundError if that is not installed."""
    if name.startswith("__"):
        raise AttributeError(f"module 'torchbayes.experiments' has no attribute {name!r}")
    try:
        import torchbayes_experiments
    except ModuleNotFoundError as error:
        if error.name != "torchbayes_experiments":
            raise
        raise ModuleNotFoundError(
            "The experiments are a distribution of their own, torchbayes-experiments, which is not installed. It is "
            "the folder `experiments` of torchbayes' repository: python -m pip install ./experiments.",
            name=error.name,
        ) from None
    return getattr(torchbayes_experiments, name)
