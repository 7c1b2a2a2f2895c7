"""Former path of `torchbayes.continual`, which stays until version 0.2."""

import warnings

from torchbayes.continual import Learned, Task, sequence

__all__ = ["Learned", "Task", "sequence"]

warnings.warn("`torchbayes.sequences` is `torchbayes.continual` now.", FutureWarning, stacklevel=2)
