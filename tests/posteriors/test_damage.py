"""Damaged files: each is read as it was, or refused in words that name it; none silently, none with a raw error."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import torchbayes as tb
from tests.damage import DAMAGES, WEIGHTS, unreadable
from tests.laws.cases import POSTERIORS, everything, model_of, normal, rows_of
from torchbayes.assess.diagnose import read_log
from torchbayes.linalg import DenseCurvature, DiagonalCurvature, LowRankCurvature
from torchbayes.posteriors.files import read_tensors, write_tensors
from torchbayes.posteriors.load import read_draws
from torchbayes.posteriors.store import DrawFile, _verify

pytestmark = pytest.mark.usefixtures("unjudged_fits")

MODEL = model_of()
SAMPLER = tb.SGHMC(2, 24, 8, 2, step_size=1e-3, batch_size=6, plan="loop")
Found = dict[str, Any]


def _laplace(curvature: Any, seed: int) -> tb.LaplacePosterior:
    mean_MD = normal(2, MODEL.layout.size, seed=seed)
    ones_MD, nothing_M = torch.ones_like(mean_MD), torch.zeros(2, dtype=torch.float64)
    return tb.LaplacePosterior(MODEL, mean_MD, curvature, ones_MD, ones_MD[0], nothing_M, 24, 24)


def _posteriors(seed: int) -> dict[str, Any]:
    size = MODEL.layout.size
    root = normal(2, size, size, seed=seed)
    made = {name: make(MODEL, 2) for name, make in POSTERIORS.items()}
    if seed:  # the same kinds with other weights
        shift = {"mean_MD": normal(2, size, seed=seed)}
        fields = {
            "point": {"weights_MD": shift["mean_MD"]},
            "draws": {"weights_MSD": normal(2, 12, size, seed=seed)},
        }
        points = {"points_MPD": normal(*made["curve_chain"].tensors()["points_MPD"].shape, seed=seed)}
        fields |= {"curve_bezier": points, "curve_chain": points}
        fields |= {n: {"vertices_MPD": points["points_MPD"]} for n in ("simplex", "simplex_complex")}
        made = {n: replace(p, **fields.get(n, shift)) for n, p in made.items()}  # type: ignore[type-var]
    made["laplace_dense"] = _laplace(DenseCurvature(root @ root.mT), seed)
    made["laplace_diagonal"] = _laplace(DiagonalCurvature(root[:, 0] ** 2), seed)
    made["laplace_low_rank"] = _laplace(
        LowRankCurvature(root[:, :3], root[:, 0] ** 2, root[:, 0, 0] ** 2, root[:, 0, 1] ** 2), seed
    )
    return made


@dataclass(frozen=True)
class Case:
    """A file, how it is read, and where the same file of another fit lies."""

    path: Path
    read: Callable[[Path], Found]
    other: Path

    @cached_property
    def expected(self) -> Found:
        """What is read of the sound file."""
        return self.read(self.path)


def _load(path: Path) -> Found:
    actual = tb.load(path, MODEL)
    return {**everything(actual), "type": type(actual), "settings": actual.settings(), "known": actual.statistics_known}


def _draws(path: Path) -> Found:
    return {"draws": read_draws(path.parent, MODEL)}


def _tensor_bytes(path: Path) -> int:
    return sum(tensor.nbytes for tensor in read_tensors(path)[0].values())


def _log(path: Path) -> Found:
    return {"log": [{k: v for k, v in r.items() if k != "seconds"} for r in read_log(path.parent)]}


def _resume(path: Path) -> Found:
    """Go on with the run, and return all that is then in its directory."""
    method = SAMPLER if "sghmc" in path.parent.name else tb.SWAG(members=2, epochs=6, batch_size=8, rank=2, plan="loop")
    actual = tb.fit(MODEL, rows_of(), method, directory=path.parent, resume=True, callbacks=())
    return {**everything(actual), **_log(path)}


def _run(directory: Path, method: Any, seed: int) -> None:
    inputs, targets = rows_of()
    tb.fit(MODEL, (inputs + 0.1 * seed, targets), method, directory=directory, callbacks=())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Every file that this library writes, and one of another fit of the same settings to other data."""
    home, away = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("away")
    actual = []
    for place, seed in ((home, 0), (away, 1)):
        for name, posterior in _posteriors(seed).items():
            posterior.save(place / name / "q.safetensors")
        _run(place / "sghmc", SAMPLER, seed)
        _run(place / "swag", tb.SWAG(members=2, epochs=6, batch_size=8, rank=2, plan="loop"), seed)
    for name in _posteriors(0):  # alone, each file is valid; the header of one with the tensors of the other is not
        path, other = (place / name / "q.safetensors" for place in (home, away))
        own, start = path.read_bytes(), len(path.read_bytes()) - _tensor_bytes(path)
        other.write_bytes(own[:start] + other.read_bytes()[-_tensor_bytes(path) :])
        actual.append(Case(path, _load, other))
    for name, read in (
        ("sghmc/posterior.safetensors", _load),
        ("swag/posterior.safetensors", _load),
        ("sghmc/draws.bin", _load_beside),
        ("sghmc/draws.bin", _draws),
        ("sghmc/draws.json", _draws),
        ("sghmc/log.jsonl", _log),
        ("sghmc/log.jsonl", _resume),
        ("sghmc/checkpoint.safetensors", _resume),
        ("sghmc/draws.bin", _resume),
        ("sghmc/draws.json", _resume),
        ("sghmc/config.json", _resume),
        ("swag/checkpoint.safetensors", _resume),
        ("swag/config.json", _resume),
        ("swag/log.jsonl", _resume),
    ):
        actual.append(Case(home / name, read, away / name))
    return actual


def _load_beside(path: Path) -> Found:
    return _load(path.with_name("posterior.safetensors"))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[k], second[k]) for k in first)
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and first.numpy().tobytes() == second.numpy().tobytes()
        )
    return bool(first == second)


def _outcome(read: Callable[[Path], Found], path: Path, expected: Found) -> tuple[str, str]:
    """Read a damaged file; say how that ended, and in what words."""
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            actual = read(path)
    except (ValueError, OSError) as error:
        text = str(error)
        return ("said" if str(path.parent) in text and len(text) < 1000 else "raw"), f"{type(error).__name__}: {text}"
    except Exception as error:
        return "raw", f"{type(error).__name__}: {error}"
    if not any(str(path.parent) in str(one.message) for one in told):
        return ("same" if _same(actual, expected) else "silent"), ""
    whole, kept = expected.pop("log"), actual.pop("log")  # the log alone is read in part, with a warning
    sound = _same(actual, expected) and all(record in whole for record in kept)
    return ("said" if sound else "silent"), f"{told[0].category.__name__}: {told[0].message}"


def tally(cases: list[Case], each: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Damage every file some times; return the outcomes, and what went wrong."""
    outcomes: Counter[str] = Counter()
    wrong = []
    for number, case in enumerate(cases):
        for trial in range(each):
            chance = random.Random(f"{number} {trial}")
            how = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            place = folder / str(number) / case.path.parent.name
            if case.read is _resume or not trial:  # the other readers leave the files beside as they are
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(case.path.parent, place)
            path = place / case.path.name
            path.write_bytes(DAMAGES[how](case.path.read_bytes(), chance, case.other.read_bytes()))
            outcome, text = _outcome(case.read, path, {**case.expected})
            outcomes[outcome] += 1
            if outcome in {"silent", "raw"}:
                what = f"{case.path.parent.name}/{path.name} by {case.read.__name__}, trial {trial} ({how})"
                wrong.append(f"{outcome}: {what}: {text[:300]}")
    return outcomes, wrong


def test_600_damaged_files_are_told_or_harmless(cases: list[Case], tmp_path: Path) -> None:
    outcomes, wrong = tally(cases, -(-600 // len(cases)), tmp_path)
    print(outcomes)
    assert not wrong, "\n".join(wrong)
    assert outcomes.total() >= 600


def test_a_folder_in_the_place_of_a_file_is_told(cases: list[Case], tmp_path: Path) -> None:
    for number, case in enumerate(cases):
        place = tmp_path / str(number) / case.path.parent.name
        shutil.copytree(case.path.parent, place)
        (place / case.path.name).unlink()
        (place / case.path.name).mkdir()
        outcome, text = _outcome(case.read, place / case.path.name, {**case.expected})
        assert outcome == "said", f"{case}: {text}"


def test_a_file_of_another_kind_in_its_place_is_told(cases: list[Case], tmp_path: Path) -> None:
    for number, case in enumerate(case for case in cases if (case.path.parent / "config.json").exists()):
        for name in sorted(path.name for path in case.path.parent.iterdir()):
            place = tmp_path / f"{number} {name}" / case.path.parent.name
            shutil.copytree(case.path.parent, place)
            shutil.copyfile(place / name, place / case.path.name) if name != case.path.name else None
            outcome, text = _outcome(case.read, place / case.path.name, {**case.expected})
            assert outcome == ("same" if name == case.path.name else "said"), f"{case.path.name} {name}: {text}"


def test_files_that_may_not_be_read_are_told(cases: list[Case], tmp_path: Path) -> None:
    for number, case in enumerate(cases):
        place = tmp_path / str(number) / case.path.parent.name
        shutil.copytree(case.path.parent, place)
        with unreadable(place / case.path.name):
            outcome, text = _outcome(case.read, place / case.path.name, {**case.expected})
        assert outcome == "said", f"{case}: {text}"


def test_files_that_are_missing_are_told_or_not_needed(cases: list[Case], tmp_path: Path) -> None:
    for number, case in enumerate(cases):
        place = tmp_path / str(number) / case.path.parent.name
        shutil.copytree(case.path.parent, place)
        (place / case.path.name).unlink()
        outcome, text = _outcome(case.read, place / case.path.name, {**case.expected})
        assert outcome in {"said", "same"}, f"{case}: {text}"


def test_a_file_of_before_checksums_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "q.safetensors"
    layout = {name: list(shape) for name, shape in MODEL.layout.shapes.items()}
    header = {"format": 1, "kind": "point", "layout": layout, "settings": {}, "statistics_known": True}
    save_file({"weights_MD": normal(2, MODEL.layout.size)}, path, metadata={"torchbayes": json.dumps(header)})
    message = r"has format 1, without checksums; this version reads format 2\. Fit again, or read it with the version"
    with pytest.raises(ValueError, match=message) as caught:
        tb.load(path, MODEL)
    assert str(caught.value).startswith(str(path))


# the others have the widths of these
WIDTHS = [torch.float64, torch.float16, torch.bool]
DTYPES = [*WIDTHS, *(pytest.param(d, marks=pytest.mark.study) for d in (torch.bfloat16, torch.int64, torch.uint8))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_a_tensor_counts(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = (normal(1, 2) > 0).to(dtype)
    whole = write_tensors(tmp_path / "x", {"a": tensor, "scalar": tensor[0, 0], "none": tensor[:0]}, {}).read_bytes()
    assert torch.equal(read_tensors(tmp_path / "x")[0]["a"], tensor)
    for place in range(len(whole) - 3 * tensor.element_size(), len(whole)):
        for bit in range(8):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            (tmp_path / "x").write_bytes(changed)
            with pytest.raises(ValueError, match=r"x is damaged: `(a|scalar)` is not what was written"):
                read_tensors(tmp_path / "x")


def test_long_files_of_draws_are_verified_on_request_and_by_who_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchbayes.posteriors.store._AT_ONCE", 1000)
    monkeypatch.setattr("torchbayes.posteriors.store._PIECE", 100)
    file = DrawFile.create(tmp_path, normal(2, 30), {"w": (30,)})
    for number in range(4):
        file.append(normal(2, 30, seed=number))
    file.read(verify=True)
    whole = bytearray(file.path.read_bytes())
    whole[2 * file.draw_bytes + 123] ^= 4
    file.path.write_bytes(whole)
    assert file.read().shape == (2, 4, 30)  # so that of a file larger than memory only what is used is read
    message = r"draws\.bin is damaged: draw 3 is not what was written there\. The 2 before it are whole\. Restore it or"
    for read in (lambda: file.read(verify=True), lambda: file.truncate(3), lambda: file.truncate(4)):
        with pytest.raises(ValueError, match=message):
            read()
    assert file.path.read_bytes() == whole
    file.truncate(2)
    assert torch.equal(file.read(verify=True), torch.stack([normal(2, 30, seed=s) for s in range(2)], 1))


@pytest.mark.parametrize("piece", [1, 450, 1 << 24])  # a draw, two draws and all of them
def test_rows_of_draws_are_known_at_their_place_alone(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete, valid rows in the place of others; and rows of zeros, which holes in a file read as."""
    monkeypatch.setattr("torchbayes.posteriors.store._PIECE", piece)
    chains, count, size = 3, 3, 7
    file = DrawFile.create(tmp_path, normal(chains, size), {"w": (size,)}, run="a1b2")
    for _ in range(count):
        file.append(normal(chains, size))  # the same draw again and again, so that its place alone can tell
    file.read()
    sound = file.path.read_bytes()
    rows = [sound[at : at + file.row_bytes] for at in range(0, len(sound), file.row_bytes)]
    for here, there in itertools.permutations(range(chains * count), 2):
        file.path.write_bytes(b"".join(rows[there] if r == here else row for r, row in enumerate(rows)))
        with pytest.raises(ValueError, match=rf"draw {here // chains + 1} is not what .* The {here // chains} before"):
            file.read()
    for here in range(chains * count):
        file.path.write_bytes(b"".join(bytes(len(row)) if r == here else row for r, row in enumerate(rows)))
        with pytest.raises(ValueError, match=rf"draw {here // chains + 1} is not what was written there"):
            file.read()
    other = DrawFile.create(tmp_path / "other", normal(chains, size), {"w": (size,)}, run="c3d4")
    other.append(normal(chains, size))
    file.path.write_bytes(other.path.read_bytes() + sound[file.draw_bytes :])
    with pytest.raises(ValueError, match="draw 1 is not what was written there"):
        file.read()


def test_many_small_draws_are_verified_in_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, taken = DrawFile.create(tmp_path, normal(2, 4), {"w": (4,)}), []
    for number in range(300):
        file.append(normal(2, 4, seed=number))

    class Counted:
        def __init__(self, inner: Any) -> None:
            self.seek, self._read = inner.seek, inner.read

        def read(self, size: int) -> bytes:
            taken.append(size)
            return self._read(size)

    monkeypatch.setattr("torchbayes.posteriors.store._PIECE", 100 * file.draw_bytes + 1)
    with file.path.open("rb") as inner:
        _verify(file, Counted(inner), 300)  # type: ignore[arg-type]
    assert taken == 3 * [100 * file.draw_bytes]


def test_a_file_that_is_cut_while_it_is_verified_is_damaged(tmp_path: Path) -> None:
    file = DrawFile.create(tmp_path, normal(2, 4), {"w": (4,)})
    for number in range(5):
        file.append(normal(2, 4, seed=number))
    whole = file.path.read_bytes()
    for left in (0, 1, file.draw_bytes - 1, file.draw_bytes, 4 * file.draw_bytes + file.row_bytes):
        file.path.write_bytes(whole[:left])
        draw = left // file.draw_bytes + 1
        with file.path.open("rb") as cut, pytest.raises(ValueError, match=f"draw {draw} is not what was written there"):
            _verify(file, cut, 5)
