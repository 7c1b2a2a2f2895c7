"""Active learning: BALD against draws by hand, questions at random, and studies that go on."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.lora.made import MARKS, settings
from tests.oracles import assert_close
from torchbayes import lora
from torchbayes.lora.asked import read
from torchbayes.lora.setup import Setup

pytestmark = MARKS
SIZES = lora.Sizes(first=6, acquire=5, rounds=1)


def test_rounds(folder: Path, tmp_path: Path):
    asked = settings(folder, epochs=4)
    study = lora.acquire(asked, "blob", sizes=SIZES, directory=tmp_path, callbacks=())
    bald, last, random, end = study.rounds
    assert [each.way for each in study.rounds] == ["bald", "bald", "random", "random"]
    assert [each.labelled for each in study.rounds] == [6, 11, 6, 11]
    assert bald.metrics == random.metrics  # both begin with the same questions
    assert last.taken == end.taken == ()
    assert len({*random.taken}) == 5
    setup, pool = study.setup, read(asked).train
    known = _known(tmp_path)
    left = [place for place in range(len(pool)) if place not in known]
    fitted = lora.fit(_only(asked, tmp_path, known), "blob", callbacks=())
    weights_SD = fitted.posteriors["blob"].sample(10, seed=0)
    rows = setup.asked.encoding.inputs([pool[place] for place in left])
    probs_SBK = torch.stack([setup.model("blob").network(w, rows) for w in weights_SD]).double().softmax(-1)
    entropy = torch.special.entr
    informative = entropy(probs_SBK.mean(0)).sum(-1) - entropy(probs_SBK).sum(-1).mean(0)
    expected = sorted(informative.tolist(), reverse=True)[:5]
    assert_close([float(informative[left.index(place)]) for place in bald.taken], expected, rtol=1e-3, atol=1e-7)
    again = lora.acquire(asked, "blob", sizes=SIZES, directory=tmp_path, resume=True, callbacks=())
    assert again.rounds == study.rounds


def _known(home: Path) -> list[int]:
    from torchbayes.posteriors.files import read_described

    return read_described(home / "rounds" / "bald_0" / "acquired.json")["known"]


def _only(asked: lora.Settings, home: Path, places: list[int]) -> lora.Settings:
    """Settings whose training file has only some of the questions, in this order."""
    import dataclasses

    lines = Path(asked.data).read_text(encoding="utf-8").splitlines()
    path = home / "some.jsonl"
    path.write_text("\n".join(lines[place] for place in places), encoding="utf-8")
    return dataclasses.replace(asked, data=str(path))


def test_the_pool_may_be_taken_as_a_whole(folder: Path):
    sizes = lora.Sizes(first=40, acquire=7, rounds=9)
    study = lora.acquire(settings(folder, epochs=1), "blob", sizes=sizes, callbacks=())
    assert [each.labelled for each in study.rounds] == [40, 47, 48] * 2
    assert isinstance(study.setup, Setup)
