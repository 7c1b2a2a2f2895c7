"""The driver: `fit` and `sample`, the one loop, and what it leaves on disk."""

from torchbayes.driver.chains import Chains
from torchbayes.driver.fit import fit
from torchbayes.driver.progress import Event
from torchbayes.driver.sample import sample

__all__ = ["Chains", "Event", "fit", "sample"]
