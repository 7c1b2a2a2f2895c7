"""Batches padded each to its own longest row: members, whose batches then differ in width, read together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import torchbayes as tb
from tests.oracles import classes
from torchbayes.model.sources.sources import as_source
from torchbayes.randomness.seeds import member_seeds

ROWS, WORDS, MEMBERS, PADDING = 14, 9, 3, 8
TEXTS = [classes(1 + 5 * row % 7, PADDING, seed=row) for row in range(ROWS)]
EXAMPLES = [{"tokens": text, "labels": torch.tensor(int(text.sum()) % 3)} for text in TEXTS]


def padded(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Collate as Hugging Face does: to the longest row of the batch."""
    longest = max(len(e["tokens"]) for e in examples)
    tokens = [F.pad(e["tokens"], (0, longest - len(e["tokens"])), value=PADDING) for e in examples]
    return {"tokens": torch.stack(tokens), "labels": torch.stack([e["labels"] for e in examples])}


def to_full_length(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    batch = padded(examples)
    return {**batch, "tokens": F.pad(batch["tokens"], (0, 7 - batch["tokens"].shape[1]), value=PADDING)}


class Bag(nn.Module):
    """The mean embedding of the words that are not padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 4), nn.Linear(4, 3)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        counts = (tokens != PADDING).unsqueeze(-1).double()
        return self.head((self.embedding(tokens) * counts).sum(1) / counts.sum(1))


def model() -> tb.Model:
    return tb.Model(Bag(), tb.likelihoods.Categorical())


def loader(collate: Any, **options: Any) -> DataLoader:
    return DataLoader(EXAMPLES, batch_size=4, shuffle=True, collate_fn=collate, **options)  # type: ignore[arg-type]


METHODS = {
    "map": tb.MAP(members=MEMBERS, epochs=3),
    "swag": tb.SWAG(members=MEMBERS, epochs=4, rank=2),
    "sghmc": tb.SGHMC(chains=MEMBERS, steps=9, burn_in=3, batch_size=4, thin=1),
    "hmc": tb.HMC(chains=MEMBERS, steps=3, burn_in=1, step_size=0.01, trajectory=0.03),
}


@pytest.mark.parametrize("method", [*METHODS.values()], ids=[*METHODS])
def test_padding_to_the_batch_gives_what_padding_to_one_length_gives(method: Any):
    ours = tb.fit(model(), loader(padded), method).tensors()
    theirs = tb.fit(model(), loader(to_full_length), method).tensors()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_member_reads_its_own_rows_in_its_own_order(workers: int):
    seeds = member_seeds(4, MEMBERS)
    ours = [*as_source(model(), loader(padded, num_workers=workers), 4).epoch(seeds, 1)]
    widths = [batch.inputs["tokens"].shape[-1] for batch in ours]
    for member, seed in enumerate(seeds):
        alone = [*as_source(model(), loader(padded), 4).epoch([seed], 1)]
        for batch, own, width in zip(ours, alone, widths, strict=True):
            expected = F.pad(own.inputs["tokens"][0], (0, width - own.inputs["tokens"].shape[-1]), value=PADDING)
            assert torch.equal(batch.inputs["tokens"][member], expected)
            assert torch.equal(batch.targets[member], own.targets[0])


def test_batches_of_one_width_are_collated_one_member_at_a_time():
    sizes: list[int] = []

    def noted(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        sizes.append(len(examples))
        return to_full_length(examples)

    assert len([*as_source(model(), loader(noted), 4).epoch(member_seeds(4, MEMBERS), 0)]) == 4
    assert sorted(set(sizes)) == [3, 4]


def test_collation_that_drops_rows_is_refused():
    def shorter(examples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return padded(examples[:3])

    said = (
        r"the batches of the 3 members differ in shape, and collated together their \d+ rows make 3\. Let `collate_fn`"
    )
    with pytest.raises(ValueError, match=said):
        tb.fit(model(), loader(shorter), METHODS["map"])


def test_a_list_of_batches_of_different_widths_cannot_be_read_at_once():
    batches = [padded(EXAMPLES[:1]), padded(EXAMPLES[1:])]
    said = r"the tensors of all batches must have one shape a row; got \(7,\) after \(1,\)\. Pad all batches to one"
    with pytest.raises(ValueError, match=said):
        tb.fit(model(), batches, METHODS["hmc"])
    assert tb.evaluate(tb.fit(model(), batches, METHODS["map"]), batches).metrics["nll"] > 0
