"""Published numbers that `variational_uci` is compared with."""

from __future__ import annotations

# NLL of MC dropout on each standard split: repository of Gal, yaringal/DropoutUncertaintyExps, UCI_Datasets/*/results,
# test_ll_100_xepochs_1_hidden_layers.txt (4,000 epochs; rate and precision chosen from a grid on every split)
_BY_SPLIT = {
    "boston": (
        "2.444 2.448 2.245 2.347 2.735 2.179 2.145 2.484 2.635 2.850 2.608 2.163 2.300 2.386 2.240 2.225 "
        "2.382 2.376 2.374 2.474"
    ),
    "concrete": (
        "3.050 2.930 2.792 2.925 3.092 2.830 3.029 2.987 2.869 2.976 2.711 2.817 2.883 2.798 3.050 2.932 "
        "2.956 2.896 3.128 3.081"
    ),
    "energy": (
        "1.174 1.210 1.176 1.210 1.221 1.202 1.186 1.205 1.245 1.192 1.261 1.206 1.251 1.205 1.179 1.222 "
        "1.228 1.202 1.222 1.234"
    ),
    "kin8nm": (
        "-1.070 -1.136 -1.137 -1.140 -1.183 -1.108 -1.140 -1.155 -1.144 -1.088 -1.159 -1.113 -1.129 -1.178 "
        "-1.107 -1.156 -1.170 -1.104 -1.143 -1.170"
    ),
    "naval": (
        "-4.418 -4.452 -4.457 -4.447 -4.446 -4.455 -4.432 -4.455 -4.454 -4.441 -4.458 -4.455 -4.456 -4.449 "
        "-4.455 -4.443 -4.452 -4.455 -4.453 -4.459"
    ),
    "power": (
        "2.847 2.753 2.779 2.801 2.897 2.866 2.810 2.772 2.804 2.812 2.772 2.883 2.763 2.824 2.781 2.777 "
        "2.793 2.790 2.806 2.826"
    ),
    "protein": "2.874 2.867 2.874 2.875 2.867",
    "wine": (
        "0.928 0.910 1.065 0.900 0.844 0.950 0.973 0.995 0.838 0.960 0.920 0.964 1.014 0.923 0.907 0.831 "
        "0.924 0.876 0.907 0.934"
    ),
    "yacht": (
        "1.311 1.202 1.139 1.248 1.222 1.220 1.171 1.385 1.184 1.159 1.354 1.344 1.263 1.263 1.289 1.214 "
        "1.190 1.253 1.241 1.350"
    ),
}
DROPOUT_NLL = {name: tuple(map(float, numbers.split())) for name, numbers in _BY_SPLIT.items()}

# RMSE of the same run, mean over splits
DROPOUT_RMSE = {
    "boston": 2.90,
    "concrete": 4.83,
    "energy": 0.54,
    "kin8nm": 0.08,
    "naval": 0.00,
    "power": 4.01,
    "protein": 4.27,
    "wine": 0.62,
    "yacht": 0.67,
}

# NLL of variational inference with independent weights: google/uncertainty-baselines, baselines/uci/README.md. One
# hidden layer of 50 units, one draw of the weights, one random split with 80 % of the rows for training
MEAN_FIELD_NLL = {
    "boston": 3.12,
    "concrete": 3.22,
    "energy": 0.93,
    "kin8nm": -1.03,
    "naval": -6.12,
    "power": 2.85,
    "protein": 2.93,
    "wine": 1.00,
    "yacht": 2.01,
}
