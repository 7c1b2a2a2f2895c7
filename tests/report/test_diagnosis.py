"""The words and numbers of a diagnosis, against those of the tensors it holds."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.pictures import unpainted
from torchbayes.assess.diagnose import Diagnosis, Record, Trace
from torchbayes.diagnostics import Summary, summary
from torchbayes.report.diagnosis import (
    caption,
    chain_table,
    numbers,
    pictures,
    remarks,
    space_numbers,
    space_table,
    space_tables,
    write_diagnosis,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def record(chains: int = 4) -> Record:
    count = torch.arange(1, chains + 1)
    return Record(
        log_density_MR=normal(chains, 50, seed=5),
        step_R=torch.arange(21, 71),
        exact=True,
        ebfmi_M=0.5 + 0.1 * count.double(),
        acceptance_M=0.7 + 0.05 * count.double(),
        divergences_M=torch.zeros(chains, dtype=torch.int64),
        step_size_M=0.01 * count.double(),
        gradients_M=1000.0 * count.double(),
        burn_in_gradients_M=torch.full((chains,), 123.0, dtype=torch.float64),
        burn_in=20,
    )


def diagnosis(chains: int = 4, draws: int = 50, *, with_record: bool = True) -> Diagnosis:
    weights_MSD, functions = normal(chains, draws, 30), normal(chains, draws, 20, 3, seed=1)
    weights_MSD[0, :, :10] += 3.0
    weights_MSD[:, :, 4] = 1.0  # never moves
    spaces = {"weights": summary(weights_MSD), "probabilities": summary(functions)}
    trace = Trace("weight a[0] (R-hat 1.80)", weights_MSD[:, :, 0], "draw", torch.arange(1, draws + 1))
    return Diagnosis(chains, draws, spaces, (trace,), record(chains) if with_record else None)


def changed(actual: Diagnosis, **fields: object) -> Diagnosis:
    assert actual.record is not None
    return dataclasses.replace(actual, record=dataclasses.replace(actual.record, **fields))  # type: ignore[arg-type]


def test_numbers_of_a_space_are_those_of_what_moves() -> None:
    actual = diagnosis()
    rhat, bulk = (
        np.delete(part.numpy(), 4) for part in (actual.spaces["weights"].rhat, actual.spaces["weights"].ess_bulk)
    )
    tail = np.delete(actual.spaces["weights"].ess_tail.numpy(), 4)
    said = space_numbers(actual, "weights")
    assert (said["quantities"], said["unmoved"]) == (30, 1)
    assert said["rhat_median"] == pytest.approx(float(np.median(rhat)), abs=0.0)  # of 29: the middle one
    assert said["rhat_largest"] == rhat.max()
    assert said["rhat_within_1.01"] == pytest.approx(float(np.mean(rhat <= 1.01)))
    assert said["rhat_within_1.05"] == pytest.approx(float(np.mean(rhat <= 1.05)))
    assert said["rhat_within_1.1"] == pytest.approx(float(np.mean(rhat <= 1.1)))
    assert said["ess_bulk_median"] == np.median(bulk)
    assert (said["ess_bulk_least"], said["ess_tail_least"]) == (bulk.min(), tail.min())
    assert said["ess_per_1000_gradients"] == pytest.approx(1000 * float(np.median(bulk)) / 10_000)


def test_the_table_shows_them() -> None:
    actual = diagnosis()
    table = space_table(actual, caption="how")
    assert table.columns[:3] == ["space", "quantities", "R-hat"]
    said = space_numbers(actual, "probabilities")
    row = [cell.text for cell in table.cells[1]]
    assert row[:3] == ["probabilities", "60", f"{said['rhat_median']:.3f}"]
    assert row[4:7] == [f"{100 * said[f'rhat_within_{bound}']:.1f} %" for bound in (1.01, 1.05, 1.1)]
    assert row[-1] == "0"
    assert table.columns[-1] == "unmoved"
    narrow = space_tables(actual)
    assert sorted(column for part in narrow for column in part.columns[1:]) == sorted(table.columns[1:])
    assert [bool(part.caption) for part in narrow] == [False, True]


def test_columns_that_say_nothing_are_left_out() -> None:
    actual = diagnosis(with_record=False)
    assert "ESS / 1,000 gradients" not in space_table(actual).columns
    still = actual.spaces["probabilities"]
    nothing = torch.full_like(still.rhat, math.nan)
    few = still._replace(ess_bulk=nothing, ess_tail=nothing, mcse=nothing)
    actual = dataclasses.replace(actual, spaces={"probabilities": few, "weights": few})
    assert list(space_table(actual).columns) == ["space", "quantities", "R-hat", "largest", "≤ 1.01", "≤ 1.05", "≤ 1.1"]
    (only,) = space_tables(actual)
    assert "medians" in only.caption
    assert "effective sample sizes cannot be estimated yet" in " ".join(remarks(actual))
    assert list(pictures(actual)) == ["rhat", "traces"]


def test_chains_have_a_row_each() -> None:
    table = chain_table(diagnosis())
    assert table is not None
    assert list(table.columns) == [
        "chain", "E-BFMI", "acceptance", "divergences", "step size", "gradients in burn-in", "gradients",
    ]  # fmt: skip
    assert [cell.text for cell in table.cells[1]] == ["2", "0.70", "80.0 %", "0", "0.02", "123", "2,000"]
    assert "20 iterations of burn-in" in table.caption
    assert chain_table(diagnosis(with_record=False)) is None
    plain = changed(diagnosis(), ebfmi_M=None, acceptance_M=None, divergences_M=None, step_size_M=None)
    table = chain_table(plain)
    assert table is not None
    assert list(table.columns) == ["chain", "gradients in burn-in", "gradients"]
    assert "E-BFMI" not in table.caption


def test_remarks_say_what_is_wrong() -> None:
    said = remarks(diagnosis())
    assert said[0] == (
        "Each chain: E-BFMI 0.60 to 0.90, acceptance 75.0 to 90.0 %, 0 divergences, 1,000 to 4,000 gradients."
    )
    text = " ".join(said)
    assert "1 of 30 weights never move." in text
    shares = [100 * space_numbers(diagnosis(), space)["rhat_within_1.1"] for space in ("probabilities", "weights")]
    assert f"R-hat is at most 1.1 for {shares[0]:.1f} % of probabilities and {shares[1]:.1f} % of weights." in text
    least = space_numbers(diagnosis(), "probabilities")["ess_bulk_least"]
    assert f"is {least:.0f}. R-hat and effective sample sizes are reliable only if it is at least 400" in text
    assert "diverge" not in text.replace("0 divergences", "")
    assert "explored slowly" not in text
    worse = changed(diagnosis(), divergences_M=torch.tensor([0, 3, 0, 1]), ebfmi_M=torch.tensor([0.9, 0.8, 0.2, 1.0]))
    text = " ".join(remarks(worse))
    assert "0 to 3 divergences" in text
    assert "take smaller steps" in text
    assert "below 0.3 says that energies are explored slowly" in text


def test_one_chain_is_said() -> None:
    actual = diagnosis(chains=1)
    assert "One chain of 50 draws. R-hat compares the two halves of the one chain" in caption(actual)
    assert remarks(actual)[-1] == "One chain cannot show whether another would find another mode. Run several."
    assert "4 chains of 50 draws" in caption(diagnosis())
    assert "10,000 passes over the data" in caption(diagnosis())


def test_json_has_no_numbers_that_it_cannot_hold() -> None:
    actual = diagnosis(with_record=False)
    spaces = {**actual.spaces, "weights": Summary(*(torch.full((3,), math.inf) for _ in range(6)))}
    said = json.loads(json.dumps(numbers(dataclasses.replace(actual, spaces=spaces)), allow_nan=False))
    assert said["spaces"]["weights"]["rhat_largest"] is None
    assert said["gradients"] is None
    assert said["by_chain"] == {}
    said = numbers(diagnosis())
    assert said["by_chain"]["ebfmi"] == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert (said["chains"], said["draws"], said["gradients"]) == (4, 50, 10_000)


def test_the_page_holds_tables_remarks_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actual = diagnosis()
    path = write_diagnosis(tmp_path / "new", actual, title="a < b", lead="what was run", settings={"seed": 0})
    assert sorted(file.name for file in path.parent.iterdir()) == ["ess.png", "report.html", "rhat.png", "traces.png"]
    text = path.read_text("utf-8")
    assert "a &lt; b" in text
    assert text.count("<table>") == 3
    for picture in pictures(actual).values():
        assert f'alt="{picture.alt}"' in text
        assert picture.alt not in {"", picture.title, picture.caption}
    assert "what was run" in text
    assert "never move" in text
    unpainted(monkeypatch)
    assert write_diagnosis(tmp_path / "new", actual, title="again") == path
    assert "again" in path.read_text("utf-8")


def test_a_run_that_never_moves_has_a_page(tmp_path: Path) -> None:
    still = summary(torch.ones(2, 12, 5, dtype=torch.float64))
    actual = Diagnosis(2, 12, {"weights": still, "means": still}, (), None)
    assert pictures(actual) == {}
    text = write_diagnosis(tmp_path, actual, title="still").read_text("utf-8")
    assert "5 of 5 weights never move. 5 of 5 means never move." in text
