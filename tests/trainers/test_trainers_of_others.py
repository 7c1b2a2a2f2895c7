"""The optimiser under the Trainer of Hugging Face, Lightning and Accelerate, against a plain loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from torchbayes.trainers import Optimizer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*:UserWarning"),
]
STEPS = 12
CHAIN: dict[str, Any] = {"chains": 1, "steps": STEPS, "burn_in": 2, "thin": 3}
METHODS = {"IVON": tb.IVON(epochs=3), "SGHMC": tb.SGHMC(**CHAIN), "SGLD": tb.SGLD(**CHAIN, step_size=1e-4)}


def same(actual: Any, expected: Any, **tolerance: float) -> None:
    """Check that posteriors have the same tensors, bit for bit without a tolerance."""
    for name, tensor in expected.tensors().items():
        if tolerance:
            assert_close(actual.tensors()[name], tensor, **tolerance)
        else:
            assert torch.equal(actual.tensors()[name], tensor)


# --- the Trainer of Hugging Face, with an adapter


def adapter(method: Any) -> tuple[Any, Optimizer[Any], Tensor]:
    """An adapter, 16 texts of 6 tokens, of which 5 have a label, and an optimiser of 4 steps an epoch."""
    pytest.importorskip("peft")
    from tests.adapters.tiny import adapted, prompts

    network = adapted("qwen3", head=False).double()
    likelihood = tb.likelihoods.Categorical(ignore_index=-100)
    model = tb.Model(network, likelihood, tb.priors.Normal(0.5), random="*lora*")
    optimizer = Optimizer(network, model, method, num_data=16 * 5, steps_per_epoch=4)
    return network, optimizer, prompts([6] * 16)["input_ids"]


def hugging(folder: Path, method: Any, *, resume: Any = None, until: int | None = None, **settings: Any) -> Any:
    """Train for 3 epochs of 4 steps, each of two batches of two texts in order; every fifth step has a checkpoint."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    network, optimizer, ids = adapter(method)
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 3,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "steps",
        "save_steps": 5,
        "train_sampling_strategy": "sequential",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    callback = settings.pop("callback", optimizer.trainer_callback())
    given = settings.pop("optimizers", (optimizer, None))

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == until

    trainer = transformers.Trainer(
        network,
        transformers.TrainingArguments(output_dir=str(folder), **{**arguments, **settings}),
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[*([callback] if callback else []), Stop()],
        optimizers=given,
    )
    trainer.train(resume_from_checkpoint=resume)
    return network, optimizer


@pytest.mark.parametrize("name", ["IVON", "SGHMC"])
def test_a_trainer_of_hugging_face_is_a_loop(name: str, tmp_path: Path):
    """The mean over the tokens of both batches of a step; frozen weights stay; a resumed run is the same run."""
    network, optimizer = hugging(tmp_path / "whole", METHODS[name])
    posterior = optimizer.posterior()

    plain, expected, ids = adapter(METHODS[name])
    frozen = {n: p.detach().clone() for n, p in plain.named_parameters() if "lora" not in n}
    plain.train()
    for step in range(STEPS):
        batch = ids[step % 4 * 4 : step % 4 * 4 + 4]
        plain.zero_grad()
        with expected.at_gradient_point():
            plain(input_ids=batch, labels=batch).loss.backward()
        expected.step()
    same(posterior, expected.posterior(), rtol=1e-7, atol=1e-9)
    assert all(torch.equal(p, frozen[n]) for n, p in network.named_parameters() if n in frozen)

    hugging(tmp_path / "cut", METHODS[name], until=8)
    _, resumed = hugging(tmp_path / "cut", METHODS[name], resume=True)
    same(resumed.posterior(), posterior)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_grad_norm": 1.0}, r"clips gradients at 1, .* Set `max_grad_norm=0\.0`"),
        ({"lr_scheduler_type": "linear"}, r"changes the learning rate \(`lr_scheduler_type` is 'linear'\)"),
        ({"weight_decay": 0.1}, r"`weight_decay` 0\.1 has no effect here, as the model has a prior"),
        ({"label_smoothing_factor": 0.1}, r"`label_smoothing_factor` 0\.1 makes the loss another one"),
        ({"num_train_epochs": 4}, "the trainer would take 16 steps, and SGLD takes 12"),
        ({"optimizers": (None, None)}, r"alone; it has AdamW. Give `optimizers=\(optimizer, None\)`"),
        ({"callback": None}, r"not taken where SGLD takes them: .*optimizer\.trainer_callback\(\)"),
    ],
)
def test_what_a_trainer_would_change_is_refused(settings: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        hugging(tmp_path, METHODS["SGLD"], **settings)


def test_a_checkpoint_without_the_optimiser_is_refused(tmp_path: Path):
    hugging(tmp_path, METHODS["SGLD"], until=5)
    (tmp_path / "checkpoint-5" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match="resumed at step 5, and its checkpoint does not hold the state"):
        hugging(tmp_path, METHODS["SGLD"], resume=True)


def test_dora_is_refused():
    pytest.importorskip("peft")
    from tests.adapters.tiny import adapted

    network = adapted("qwen3", head=False, use_dora=True)
    model = tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100), random="*lora*")
    with pytest.raises(ValueError, match=r"lora_magnitude_vector\..*leaves out the norms .* `use_dora=False`"):
        Optimizer(network, model, METHODS["IVON"], num_data=80, steps_per_epoch=4)


# --- Lightning and Accelerate


def classifier(method: Any) -> tuple[nn.Sequential, Optimizer[Any]]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model = tb.Model(network, tb.likelihoods.Categorical())
    return network, Optimizer(network, model, method, num_data=16, steps_per_epoch=4)


def loader() -> Any:
    rows = torch.utils.data.TensorDataset(normal(16, 3), classes(16, 2))
    return torch.utils.data.DataLoader(rows, 2)


def plain_loop(method: Any) -> tuple[Optimizer[Any], list[Tensor]]:
    """12 steps, each on four rows in order; the optimiser, and the first weights of the network after each step."""
    network, optimizer = classifier(method)
    inputs, targets, path = normal(16, 3), classes(16, 2), []
    for step in range(STEPS):
        rows = slice(step % 4 * 4, step % 4 * 4 + 4)
        optimizer.zero_grad()
        with optimizer.at_gradient_point():
            nn.functional.cross_entropy(network(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        path.append(network[0].get_parameter("weight").detach().clone())
    return optimizer, path


def lightning(
    folder: Path,
    method: Any,
    *,
    resume: Path | None = None,
    until: int | None = None,
    optimize: Any = None,
    **settings: Any,
) -> tuple[Any, Optimizer[Any], list[Tensor]]:
    """Train under Lightning, two batches a step, with a validation pass after every third batch of an epoch's eight.

    Return the trainer, the optimiser, and the first weights of the network in each validation pass.
    """
    lit = pytest.importorskip("lightning.pytorch")
    network, optimizer = classifier(method)
    validated: list[Tensor] = []

    class Module(lit.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network

        def training_step(self, batch: Any, number: int) -> Tensor:
            return nn.functional.cross_entropy(network(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            validated.append(network[0].get_parameter("weight").detach().clone())

        def on_train_epoch_end(self) -> None:
            self.trainer.should_stop = self.trainer.global_step == until

        def configure_optimizers(self) -> Any:
            return optimize(network) if optimize else optimizer

    arguments: dict[str, Any] = {
        "max_epochs": 3,
        "accumulate_grad_batches": 2,
        "limit_val_batches": 1,
        "val_check_interval": 3,
        "num_sanity_val_steps": 0,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "default_root_dir": folder,
        "callbacks": [optimizer.lightning_callback()],
    }
    trainer = lit.Trainer(**{**arguments, **settings})
    trainer.fit(Module(), loader(), loader(), ckpt_path=resume)
    return trainer, optimizer, validated


@pytest.mark.parametrize("name", ["IVON", "SGLD"])
def test_lightning_is_a_loop(name: str, tmp_path: Path):
    """Validation sees the mean, even between two batches of a step; a resumed run is the same run."""
    _, optimizer, validated = lightning(tmp_path, METHODS[name])
    expected, path = plain_loop(METHODS[name])
    posterior = optimizer.posterior()
    same(posterior, expected.posterior(), rtol=1e-9, atol=1e-10)
    assert_close(torch.stack(validated[:2]), torch.stack([path[0], path[2]]), rtol=1e-9)  # after batches 3 and 6

    trainer, cut, _ = lightning(tmp_path, METHODS[name], until=8)
    assert cut.steps == 8
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    _, resumed, _ = lightning(tmp_path, METHODS[name], resume=tmp_path / "cut.ckpt")
    same(resumed.posterior(), posterior)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_clip_val": 0.5}, r"clips gradients at 0\.5, .* Leave `gradient_clip_val` out"),
        ({"max_epochs": 4}, "the trainer would take 16 steps, and SGLD takes 12"),
        ({"callbacks": []}, "not taken where SGLD takes them"),
        ({"optimize": lambda net: torch.optim.SGD(net.parameters(), lr=0.1)}, "alone; it has SGD. Give it in"),
    ],
)
def test_what_lightning_would_change_is_refused(settings: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        lightning(tmp_path, METHODS["SGLD"], **settings)


@pytest.mark.parametrize("name", ["IVON", "SGHMC"])
def test_a_loop_of_accelerate_is_a_loop(name: str):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    network, optimizer = classifier(METHODS[name])
    net, prepared, batches = accelerator.prepare(network, optimizer, loader())
    for inputs, targets in (batch for _ in range(3) for batch in batches):
        with accelerator.accumulate(net), optimizer.at_gradient_point():
            accelerator.backward(nn.functional.cross_entropy(net(inputs), targets))
            prepared.step()
            prepared.zero_grad()
    same(optimizer.posterior(), plain_loop(METHODS[name])[0].posterior(), rtol=1e-9, atol=1e-10)


def test_a_gradient_scaler_unscales_or_skips():
    """Steps are those of the true gradients; one that overflows is not taken, and the next has the same draw."""
    network, optimizer = classifier(METHODS["IVON"])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    inputs, targets = normal(16, 3), classes(16, 2)
    for step in range(STEPS):
        rows = slice(step % 4 * 4, step % 4 * 4 + 4)
        for lost in (step == 5, False)[step != 5 :]:
            optimizer.zero_grad()
            with optimizer.at_gradient_point():
                loss = nn.functional.cross_entropy(network(inputs[rows]), targets[rows])
                scaler.scale(loss * (torch.inf if lost else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
    same(optimizer.posterior(), plain_loop(METHODS["IVON"])[0].posterior(), rtol=1e-9, atol=1e-10)
