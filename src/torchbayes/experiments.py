"""Claims from papers, put to the test: what the distribution `torchbayes-experiments` has, where it is installed.

`names`, `get`, `reproduce`, `Experiment`, `Findings`, `Verdict` and the rest are those of `torchbayes_experiments`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return what the distribution has by that name.

    Raises:
        ModuleNotFoundError: if it is not installed.
        AttributeError: if it has no such name.
    """
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
