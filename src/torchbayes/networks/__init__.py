"""The networks of the papers, as plain `nn.Module`s without anything Bayesian.

Each factory takes `(input_shape, num_outputs)` and its own settings by keyword; `build` reaches them by name. All of
them run under `torch.func.functional_call`, `torch.func.vmap` and `torch.compile`. Every module that owns parameters
has `reset_parameters`, which gives the members of an ensemble their fresh initialisations.
"""

from torchbayes.networks.adapters import scale_rows
from torchbayes.networks.modules import DropConnect, MultiHead, for_head
from torchbayes.networks.registry import build, names
from torchbayes.networks.resnet import FilterResponseNorm2d, preresnet20, resnet20_frn
from torchbayes.networks.small import lenet, linear, mlp, small_cnn
from torchbayes.networks.tabular import ColumnEncoding, tabular

__all__ = [
    "ColumnEncoding",
    "DropConnect",
    "FilterResponseNorm2d",
    "MultiHead",
    "build",
    "for_head",
    "lenet",
    "linear",
    "mlp",
    "names",
    "preresnet20",
    "resnet20_frn",
    "scale_rows",
    "small_cnn",
    "tabular",
]
