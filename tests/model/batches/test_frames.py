"""Tables and columns of pandas in the place of tensors: rows count by place, never by label."""

import numpy as np
import pandas as pd
import torch
from torch import nn

import torchbayes as tb

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), columns=list("abc"))
FRAME["y"] = (FRAME.a > 0).astype(np.int64)
SHUFFLED = FRAME.sample(frac=1.0, random_state=1)  # whose labels are no longer those of the rows
INPUTS, TARGETS = torch.tensor(SHUFFLED[["a", "b", "c"]].to_numpy()), torch.tensor(SHUFFLED.y.to_numpy())


def test_verbs_take_tables_by_place():
    def model():
        return tb.Model(nn.Linear(3, 2), tb.likelihoods.Categorical())

    torch.manual_seed(0)
    expected = tb.fit(model(), (INPUTS, TARGETS), tb.MAP(epochs=3, batch_size=7), callbacks=())
    torch.manual_seed(0)
    actual = tb.fit(model(), (SHUFFLED[["a", "b", "c"]], SHUFFLED.y), tb.MAP(epochs=3, batch_size=7), callbacks=())
    assert torch.equal(actual.sample(1), expected.sample(1))
    inputs = SHUFFLED[["a", "b", "c"]]
    assert torch.equal(tb.predict(actual, inputs).probs, tb.predict(actual, INPUTS).probs)
    assert tb.evaluate(actual, (inputs, SHUFFLED.y)).metrics == tb.evaluate(actual, (INPUTS, TARGETS)).metrics


def test_numbers_of_rows_are_told_apart():
    assert (
        len(
            tb.predict(
                tb.Point(tb.Model(nn.Linear(3, 2), tb.likelihoods.Categorical()), torch.zeros(1, 8)),
                FRAME[["a", "b", "c"]].iloc[5:9],
            ).probs
        )
        == 4
    )
