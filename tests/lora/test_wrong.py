"""Bad input: what is said of bases, adapters, questions and directories that do not fit, and that nothing is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.adapters.tiny import adapted, base
from tests.lora.made import MARKS, asked, based, settings
from tests.oracles import assert_close
from torchbayes import lora
from torchbayes.lora import base as bases
from torchbayes.lora import memory
from torchbayes.lora.fingerprint import differences, fingerprint

pytestmark = MARKS


@pytest.fixture
def here(folder: Path, tmp_path: Path) -> Path:
    """A copy of the folder, to be damaged."""
    for name in ("base", "train.jsonl", "test.jsonl"):
        path = folder / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / name)
    return tmp_path


def refused(here: Path, message: str, kind: type[Exception] = ValueError, **changed: Any) -> None:
    with pytest.raises(kind, match=message):
        lora.fit(settings(here, **changed), "map", directory=here / "run", callbacks=())
    assert not (here / "run").exists()


def remove(glob: str) -> Callable[[Path], object]:
    return lambda here: [path.unlink() for path in here.glob(glob)]


def pickled(here: Path) -> None:
    (here / "base" / "model.safetensors").rename(here / "base" / "pytorch_model.bin")


def coded(here: Path) -> None:
    path = here / "base" / "config.json"
    config = {**json.loads(path.read_text()), "model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    path.write_text(json.dumps(config))
    (here / "base" / "mine.py").write_text("raise SystemExit('this ran')")


WRONG_BASES = {
    "no tokenizer": (remove("base/tokenizer*"), "no tokenizer can be read .*save_pretrained"),
    "no configuration": (remove("base/config.json"), "holds no base: it has no config.json"),
    "no weights": (remove("base/*.safetensors"), "must have its weights in safetensors; it has none"),
    "a pickle": (pickled, "only pytorch_model.bin, a pickle"),
    "code": (coded, "code of its own, which runs only if you trust it.*--trust"),
    "no folder": (lambda here: shutil.rmtree(here / "base"), "there is no folder .*base"),
}


@pytest.mark.parametrize("wrong", WRONG_BASES)
def test_a_folder_that_is_no_base(here: Path, wrong: str):
    damage, message = WRONG_BASES[wrong]
    damage(here)
    refused(here, message, FileNotFoundError if wrong == "no folder" else ValueError)


def test_an_adapter_is_no_base_and_a_base_no_adapter(here: Path):
    adapted("llama").save_pretrained(here / "adapter", save_embedding_layers=False)
    refused(here, "is an adapter, not a base", base=str(here / "adapter"))
    refused(here, "holds no adapter of PEFT: it is a whole model", adapter=str(here / "base"))
    refused(here, "there is no folder", FileNotFoundError, adapter=str(here / "none"))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"use_dora": True}, "it is a DoRA"),
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"megatron_config": {"x": 1}, "megatron_core": "antigravity"}, "names code, `megatron_core`"),
        ({"init_lora_weights": "pissa"}, "began as pissa, which changes the weights of the base"),
        ({"pickled": True}, "only adapter_model.bin, a pickle"),
        ({"base": "qwen3"}, "does not belong to the base .*It was trained on"),
        ({"width": True}, r"has shape \(2, 8\), not \(2, 6\)"),
    ],
)
def test_an_adapter_that_does_not_fit(here: Path, made: dict[str, Any], message: str):
    dora = {"use_dora": True} if "use_dora" in made else {}
    adapted(made.get("base", "llama"), **dora).save_pretrained(here / "adapter", save_embedding_layers=False)
    config = here / "adapter" / "adapter_config.json"
    entries = {name: value for name, value in made.items() if name not in {"use_dora", "pickled", "base", "width"}}
    config.write_text(json.dumps({**json.loads(config.read_text()), **entries}))
    if "pickled" in made:
        (here / "adapter" / "adapter_model.safetensors").rename(here / "adapter" / "adapter_model.bin")
    if "width" in made:
        import transformers

        narrow = json.loads((here / "base" / "config.json").read_text()) | {"hidden_size": 6, "head_dim": 4}
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**narrow)).save_pretrained(here / "base")
    if "base" in made:  # norms of queries that the base has not
        config.write_text(json.dumps({**json.loads(config.read_text()), "target_modules": ["q_norm"]}))
    refused(here, message, adapter=str(here / "adapter"))


QUESTIONS = {
    "choices that are empty": (
        '{"question": "the", "choices": [], "answer": 0}',
        "train.jsonl, line 3: there must be 2",
    ),
    "an empty choice": ('{"question": "the", "choices": ["a", " "], "answer": 0}', "line 3: choice B is empty"),
    "no answer": ('{"question": "the", "choices": ["a", "b"]}', "train.jsonl, line 3: it has no answer, as 1 of 3"),
    "no JSON": ("the", "line 3: it is no JSON"),
}


@pytest.mark.parametrize("wrong", QUESTIONS)
def test_a_question_that_cannot_be_learned_from(here: Path, wrong: str):
    line, message = QUESTIONS[wrong]
    asked(here / "train.jsonl", 2)
    with (here / "train.jsonl").open("a") as file:
        file.write("\n" + line)
    refused(here, message)


def test_answers_of_several_tokens(here: Path):
    based(here / "base", letters="AB")
    refused(here, "every answer must be a single token, but 'C', the letter C, is unknown")


def test_prompts_templates_and_shares(here: Path):
    refused(here, "train.jsonl, line 1: its prompt has .* tokens, more than the limit of 3", max_length=3)
    refused(here, "has no chat template", template="chat")
    refused(here, "of which a share of 0.01 would be held out, 0", test=None, held_out=0.01)
    refused(here, "no LoRA can be put on .*Name other `targets`", targets=("nothing",))
    written = json.loads((here / "base" / "config.json").read_text())
    (here / "base" / "config.json").write_text(json.dumps(written | {"max_position_embeddings": 4}))
    refused(here, "train.jsonl, line 1: its prompt has .* tokens, more than the limit of 4", max_length=50)


def test_missing_libraries(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bases, "find_spec", lambda name: None if name == "bitsandbytes" else True)
    refused(here, "`load_in_4bit` needs bitsandbytes, which is not installed", ImportError, load_in_4bit=True)
    monkeypatch.setattr(bases, "find_spec", lambda name: None)
    refused(here, r"transformers and peft, which are not installed: pip install 'torchbayes\[lora\]'", ImportError)


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("run")
    lora.fit(settings(folder, epochs=1), "map", directory=home, callbacks=())
    return home


def test_a_directory_that_holds_another_run(folder: Path, run: Path, here: Path):
    usual = settings(folder, epochs=1)
    with pytest.raises(ValueError, match=r"already holds a run. Add --resume"):
        lora.fit(usual, "map", directory=run)
    with pytest.raises(ValueError, match=r"another `rank` \(8; now 4\)"):
        lora.fit(settings(folder, epochs=1, rank=4), "map", directory=run, resume=True)
    shutil.copytree(run, here / "run")
    lines = json.loads((here / "run" / "lora.json").read_text())
    (here / "run" / "lora.json").write_text(json.dumps({**lines, "classes": 4}))
    with pytest.raises(ValueError, match=r"lora\.json is damaged"):
        lora.load(here / "run")
    with pytest.raises(FileNotFoundError, match="there is no run of adapters"):
        lora.load(here)


def test_another_base(run: Path, here: Path):
    based(here / "base", tied=True)
    with pytest.raises(ValueError, match=r"fitted on the base .*of 2,056 weights in float32, and .* is another one"):
        lora.load(run, base=str(here / "base"))
    other = based(here / "other")
    from safetensors.torch import load_file, save_file

    tensors = load_file(other / "model.safetensors")
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"its `lm_head\.weight` has other numbers"):
        lora.load(run, base=str(other))


def test_what_a_fingerprint_tells_apart():
    network = base("llama")
    known = fingerprint(network)
    assert differences(known, fingerprint(base("llama"))) == []
    assert known["weights"] == sum(each.numel() for each in network.parameters())
    assert differences(known, fingerprint(base("llama").bfloat16()))[0].endswith("in bfloat16")
    network.config.rope_parameters = {"rope_theta": 5.0, "rope_type": "default"}
    assert differences(known, fingerprint(network)) == ["its configuration is another"]


def test_memory_is_counted_and_refused_before_weights_are_read(here: Path, monkeypatch: pytest.MonkeyPatch):
    with torch.device("meta"):
        empty = base("llama")
    for dtype, width in (("auto", 4), ("bfloat16", 2)):
        takes = memory.needed(empty, settings(here, dtype=dtype), length=7)
        assert_close(takes.base, width * sum(each.numel() for each in empty.parameters()))
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000.0)
    refused(here, "would take about .* are free. Try batch_size=8; dtype=bfloat16.*a smaller base")


def test_a_gpu_that_is_out_of_memory_says_what_would_fit(here: Path):
    def full(event: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(RuntimeError, match=r"not enough memory on cpu .*16 questions. Try batch_size=8.*`resume`"):
        lora.fit(settings(here), "map", directory=here / "run", callbacks=[full])
    resumed = lora.fit(settings(here), "map", directory=here / "run", resume=True, callbacks=())
    assert_close(
        resumed.posteriors["map"].sample(1), lora.fit(settings(here), "map", callbacks=()).posteriors["map"].sample(1)
    )


def test_a_study_that_cannot_be(folder: Path, tmp_path: Path):
    with pytest.raises(ValueError, match=r"must be one whose draws differ, ensemble, .*got 'map'"):
        lora.acquire(settings(folder), "map")
    with pytest.raises(ValueError, match="the pool has 48 questions, fewer than the 45 at the start and 10"):
        lora.acquire(settings(folder), sizes=lora.Sizes(first=45), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lora.fit("base"), "`settings` must be Settings"),  # type: ignore[arg-type]
        (lambda: lora.fit(lora.Settings("base", "data"), 3), "there is no method for adapters called 3"),  # type: ignore[arg-type]
        (lambda: lora.fit(lora.Settings("base", "data"), "tbf"), "Did you mean tfb"),
        (lambda: lora.fit(lora.Settings("base", "data"), directory=3), "`directory` must be a path"),  # type: ignore[arg-type]
        (lambda: lora.fit(lora.Settings("base", "data"), resume="yes"), "`resume` must be True or False"),  # type: ignore[arg-type]
        (lambda: lora.load(3), "`directory` must be a path"),  # type: ignore[arg-type]
        (lambda: lora.load("run", method=3), "`method` must be a name"),  # type: ignore[arg-type]
        (lambda: lora.score("run"), "`run` must be a run"),  # type: ignore[arg-type]
        (lambda: lora.predict("run", []), "`run` must be a run"),  # type: ignore[arg-type]
        (lambda: lora.acquire("base"), "`settings` must be Settings"),  # type: ignore[arg-type]
        (lambda: lora.acquire(lora.Settings("base", "data"), sizes=3), "`sizes` must be Sizes"),  # type: ignore[arg-type]
        (lambda: lora.Settings("base", "data", refine=True), "`refine` is for a trained adapter"),
    ],
)
def test_nonsense(call: Callable[[], Any], message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
