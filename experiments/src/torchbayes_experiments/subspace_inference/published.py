"""Published numbers that `subspace_inference` is compared with: supplement and repository of Izmailov et al. (2019).

Regression: mean and standard deviation over the 20 splits, tables 2 to 4 of the supplement, in the same order: test log
likelihood of the normal distribution with the first two moments of the average, RMSE, and share of the targets in the
central 95 % interval.
"""

from __future__ import annotations

from torchbayes_experiments.subspace_inference.recipe import ESS, SGD_POINT, SWAG_POSTERIOR, VARIATIONAL

Numbers = dict[str, tuple[float, float]]

LOG_LIKELIHOOD: dict[str, Numbers] = {
    "boston": {
        SGD_POINT: (-2.752, 0.132),
        ESS: (-2.719, 0.132),
        VARIATIONAL: (-2.716, 0.133),
        SWAG_POSTERIOR: (-2.761, 0.132),
    },
    "concrete": {
        SGD_POINT: (-3.178, 0.198),
        ESS: (-3.007, 0.086),
        VARIATIONAL: (-2.994, 0.095),
        SWAG_POSTERIOR: (-3.013, 0.086),
    },
    "energy": {
        SGD_POINT: (-1.736, 1.613),
        ESS: (-1.563, 1.243),
        VARIATIONAL: (-1.715, 1.588),
        SWAG_POSTERIOR: (-1.679, 1.488),
    },
    "naval": {
        SGD_POINT: (6.567, 0.185),
        ESS: (6.541, 0.095),
        VARIATIONAL: (6.708, 0.105),
        SWAG_POSTERIOR: (6.708, 0.105),
    },
    "yacht": {
        SGD_POINT: (-0.418, 0.426),
        ESS: (-0.225, 0.400),
        VARIATIONAL: (-0.396, 0.419),
        SWAG_POSTERIOR: (-0.404, 0.418),
    },
}
RMSE: dict[str, Numbers] = {
    "boston": {
        SGD_POINT: (3.504, 0.975),
        ESS: (3.453, 0.953),
        VARIATIONAL: (3.457, 0.951),
        SWAG_POSTERIOR: (3.517, 0.981),
    },
    "concrete": {
        SGD_POINT: (5.194, 0.446),
        ESS: (5.194, 0.448),
        VARIATIONAL: (5.142, 0.418),
        SWAG_POSTERIOR: (5.233, 0.417),
    },
    "energy": {
        SGD_POINT: (1.602, 0.275),
        ESS: (1.598, 0.274),
        VARIATIONAL: (1.587, 0.272),
        SWAG_POSTERIOR: (1.594, 0.273),
    },
    "naval": dict.fromkeys((SGD_POINT, ESS, VARIATIONAL, SWAG_POSTERIOR), (0.001, 0.0)),
    "yacht": {
        SGD_POINT: (0.973, 0.374),
        ESS: (0.972, 0.375),
        VARIATIONAL: (0.973, 0.375),
        SWAG_POSTERIOR: (0.973, 0.375),
    },
}
COVERAGE: dict[str, Numbers] = {
    "boston": {
        SGD_POINT: (0.986, 0.018),
        ESS: (0.985, 0.017),
        VARIATIONAL: (0.984, 0.017),
        SWAG_POSTERIOR: (0.986, 0.018),
    },
    "concrete": {
        SGD_POINT: (0.864, 0.029),
        ESS: (0.941, 0.021),
        VARIATIONAL: (0.934, 0.019),
        SWAG_POSTERIOR: (0.933, 0.024),
    },
    "energy": {
        SGD_POINT: (0.947, 0.026),
        ESS: (0.953, 0.027),
        VARIATIONAL: (0.949, 0.027),
        SWAG_POSTERIOR: (0.951, 0.027),
    },
    "naval": {
        SGD_POINT: (0.948, 0.051),
        ESS: (0.978, 0.006),
        VARIATIONAL: (0.967, 0.008),
        SWAG_POSTERIOR: (0.967, 0.008),
    },
    "yacht": {
        SGD_POINT: (0.895, 0.069),
        ESS: (0.948, 0.040),
        VARIATIONAL: (0.898, 0.067),
        SWAG_POSTERIOR: (0.898, 0.067),
    },
}

# NLL and accuracy in % of elliptical slice sampling, PreResNet-164 on CIFAR-100: readme of the authors' repository; of
# the average of weights, supplement, tables 8 and 9
IMAGE_NLL = {"SWA": 0.7370, "random": 0.6858, "PCA": 0.6652, "curve": 0.6493}
IMAGE_ACCURACY = {"SWA": 80.19, "random": 80.17, "PCA": 80.54, "curve": 81.55}
