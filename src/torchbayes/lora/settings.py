"""What a run of adapters is about: base, questions, adapter, and how long it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchbayes.checks import (
    as_seed,
    check_choice,
    check_counts,
    check_flags,
    check_positive,
    check_share,
    check_text,
    optional,
    plain,
    seen,
)

Precision = Literal["auto", "float32", "bfloat16", "float16"]
PRECISIONS = ("auto", "float32", "bfloat16", "float16")
_SHOWN, _STEPS, _RATE = 20_000, 5_000, 1e-4  # questions shown in all, steps and learning rate of the reference
_MOST_EPOCHS, _MOST_RATE = 10, 1e-3
_FEWEST_STEPS = 500  # fewer leave an adapter of few questions where it began
_WITHOUT_GRADIENTS = 4


@dataclass(frozen=True)
class Settings:
    """The base, the questions and the adapter of a run.

    Attributes:
        base: folder of a causal language model of Hugging Face, or its name on the hub; weights in safetensors.
        data: questions to learn from, JSON lines of question (or prompt), choices, and answer (or label).
        test: questions for the numbers; a share of `data` if None.
        other: questions of another kind, which the average should be unsure about; their answers play no part.
        held_out: share of `data` that is held out for the numbers where there is no `test`.
        adapter: folder of a trained LoRA of PEFT to begin at; a fresh one is trained if None.
        refine: whether the adapter of that folder is trained further; else TFB, Laplace and others take it as it is.
        rank: r, of a fresh adapter.
        alpha: α, of a fresh adapter, whose output has the factor α/r; None for 2r.
        targets: names of the layers that a fresh adapter is on, or all-linear; none for those of the queries and the
            values and the output layer, where the base has such names.
        prior: τ. Factors of an adapter are normal with mean 0 and the standard deviation with which it moves each
            output of its layer by τ at inputs whose entries have the size 1: a² = τ / (s √(r I)), s the factor above,
            I the number of inputs. BLoB and ScalaBL have the priors of their papers.
        template: how a question becomes a prompt: plain; chat, with the chat template of the tokenizer; or text of your
            own with {question} and {choices}.
        before: what stands before the letter of an answer; None for a blank where that is one token, else nothing.
        max_length: tokens that a prompt may have; what the tokenizer says if None. Never more than the positions of the
            base.
        dtype: of the frozen weights: auto (as they are saved), float32, bfloat16 or float16. Adapters are in float32.
        load_in_4bit: load the base in 4 bits by bitsandbytes.
        device: where to run: auto (a GPU if there is one), cpu, cuda, cuda:NUMBER or mps.
        epochs: passes over the questions; None for 20,000 questions in all, and at most 10 passes, or more where these
            have fewer than 500 steps.
        batch_size: questions that go through the network at once in training; four times as many do in predictions.
        lr: learning rate of Adam; None for 10⁻⁴ √(5,000 / steps), at most 10⁻³. IVON and SGHMC have their own.
        members: networks of an ensemble.
        draws: functions that are averaged, rounded up to a multiple of the members.
        seed: of the questions held out, initialisation, order and noise.
    """

    base: str
    data: str
    test: str | None = None
    other: str | None = None
    held_out: float = 0.2
    adapter: str | None = None
    refine: bool = False
    rank: int = 8
    alpha: float | None = None
    targets: tuple[str, ...] = ()
    prior: float = 10.0
    template: str = "plain"
    before: str | None = None
    max_length: int | None = None
    dtype: Precision = "auto"
    load_in_4bit: bool = False
    device: str = "auto"
    epochs: int | None = None
    batch_size: int = 4
    lr: float | None = None
    members: int = 5
    draws: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        plain(self)
        check_text(base=self.base, data=self.data, template=self.template, device=self.device)
        optional(check_text, test=self.test, other=self.other, adapter=self.adapter, before=self.before)
        for name in ("base", "data", "test", "other", "adapter"):
            if getattr(self, name) == "":
                raise ValueError(f"`{name}` is empty. Name a folder or a file, or leave it out.")
        _check_template(self.template)
        check_share(held_out=self.held_out)
        check_flags(refine=self.refine, load_in_4bit=self.load_in_4bit)
        check_counts(rank=self.rank, batch_size=self.batch_size, draws=self.draws)
        check_counts(least=2, members=self.members)
        optional(check_counts, epochs=self.epochs, max_length=self.max_length)
        check_positive(prior=self.prior)
        optional(check_positive, alpha=self.alpha, lr=self.lr)
        check_choice(PRECISIONS, dtype=self.dtype)
        if not isinstance(self.targets, tuple | list) or not all(isinstance(each, str) for each in self.targets):
            raise TypeError(f"`targets` must be names of layers; got {seen(self.targets)}.")
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.refine and self.adapter is None:
            raise ValueError("`refine` is for a trained adapter. Name its folder as `adapter`, or leave `refine` out.")
        as_seed(self.seed)

    @property
    def chunk_size(self) -> int:
        """Questions that go through the network at once without gradients, which take most of the memory."""
        return _WITHOUT_GRADIENTS * self.batch_size

    def length(self, rows: int) -> Length:
        """Return how long to train on so many questions, and how fast."""
        per_epoch = -(-rows // self.batch_size)
        usual = max(1, min(_MOST_EPOCHS, -(-_SHOWN // rows)), -(-_FEWEST_STEPS // per_epoch))
        epochs = usual if self.epochs is None else self.epochs
        steps = epochs * per_epoch
        lr = min(_MOST_RATE, _RATE * (_STEPS / steps) ** 0.5) if self.lr is None else self.lr
        return Length(epochs, steps, lr)


@dataclass(frozen=True)
class Length:
    """How long a training run is: passes, steps, and the learning rate at its height."""

    epochs: int
    steps: int
    lr: float


def _check_template(template: str) -> None:
    if template in {"plain", "chat"}:
        return
    if "{question}" not in template or "{choices}" not in template:
        raise ValueError(
            f"`template` must be plain, chat, or text with {{question}} and {{choices}}, behind which the answer "
            f"follows; got {seen(template)}."
        )
