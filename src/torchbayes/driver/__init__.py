"""The driver: the one loop, `sample`, and the files that a run writes."""

from torchbayes.driver.chains import Chains
from torchbayes.driver.progress import Event, Progress
from torchbayes.driver.sample import sample
from torchbayes.driver.tracker import Tracker

__all__ = ["Chains", "Event", "Progress", "Tracker", "sample"]
