"""Points that are collected while another library trains, against the weights that it visited."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from tests.oracles import assert_close, classes, normal
from torchbayes.trainers import Collecting

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval.*:UserWarning"),
]


def linear() -> tuple[nn.Linear, tb.Model]:
    torch.manual_seed(0)
    network = nn.Linear(3, 2).double()
    return network, tb.Model(network, tb.likelihoods.Categorical())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [*range(6, 11)]),
        ({"after": 2, "every": 3}, [5, 8]),
        ({"after": 0, "every": 4}, [4, 8]),
        ({"after": 7}, [8, 9, 10]),
        ({"after": 20}, []),
    ],
)
def test_points_are_due(settings: dict[str, Any], expected: list[int]):
    collecting = Collecting(tb.SWAG().collector(linear()[1]), **settings)
    assert [step for step in range(1, 11) if collecting.due(step, 10)] == expected


def test_usual_points_are_those_of_swag():
    """Where every step is an epoch, they come when `fit` takes them."""
    method = tb.SWAG(burn_in=0.3)
    collecting = Collecting(method.collector(linear()[1]))
    for total in (7, 60, 211):
        due = [method.due(SimpleNamespace(step=s, total_steps=total, steps_per_epoch=1)) for s in range(1, total + 1)]  # type: ignore[arg-type]
        assert [collecting.due(s, total) for s in range(1, total + 1)] == due
        assert sum(due) == min(50, total - round(0.3 * total))


def visited(network: nn.Module, collecting: Collecting, steps: int) -> Tensor:
    """Move a network at random, as an optimiser would, and return the weights of the points taken."""
    points = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            for number, parameter in enumerate(network.parameters()):
                parameter.add_(normal(*parameter.shape, seed=10 * step + number))
        if collecting(nn.DataParallel(network), step, steps):
            points.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    return torch.stack(points)


def test_snapshots_are_an_ensemble():
    network, model = linear()
    collecting = Collecting(tb.SWA(members=4).collector(model), snapshots=True)
    points = visited(network, collecting, 9)
    assert len(points) == 4
    assert_close(collecting.collector.posterior().weights_MD, points)
    every = Collecting(tb.SWA(members=3).collector(model), after=0, every=2, snapshots=True)
    assert len(visited(network, every, 20)) == 3


# --- the Trainer of Hugging Face, with an adapter


class Recorded:
    """The weights of the adapter after each step of the optimiser."""

    def __init__(self) -> None:
        self.weights: dict[int, Tensor] = {}

    def callback(self) -> Any:
        from transformers import TrainerCallback

        weights = self.weights

        class Callback(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                named = [p.detach().flatten() for n, p in model.named_parameters() if "lora" in n]
                weights[state.global_step] = torch.cat(named)

        return Callback()


def trained(
    folder: Path, settings: dict[str, Any], *, resume: Any = None, until: int | None = None
) -> tuple[Collecting, Recorded]:
    """Train an adapter for 12 steps, of two batches each, with a checkpoint at every fifth."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    pytest.importorskip("accelerate")
    from tests.adapters.tiny import adapted, prompts

    network = adapted("qwen3", head=False, lora_dropout=0.1)
    model = tb.Model(network, tb.likelihoods.Categorical(ignore_index=-100), random="*lora*")
    collecting, recorded = Collecting(tb.SWAG(rank=3).collector(model), **settings), Recorded()
    ids = prompts([6] * 16)["input_ids"]
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=5,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == until

    trainer = transformers.Trainer(
        network,
        args,
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[collecting.trainer_callback(), recorded.callback(), Stop()],
    )
    trainer.train(resume_from_checkpoint=resume)
    return collecting, recorded


def test_a_trainer_collects_what_it_visits(tmp_path: Path):
    """SWAG: the mean, ½ the variances, and the last K deviations from running means over √(2 (K − 1))."""
    collecting, recorded = trained(tmp_path / "whole", {"after": 3, "every": 2})
    posterior = collecting.collector.posterior()
    points_KD = torch.stack([recorded.weights[step] for step in (5, 7, 9, 11)]).double()
    assert collecting.collector.points == (4,)
    assert_close(posterior.mean_MD[0], points_KD.mean(0), rtol=1e-5, atol=1e-7)
    means_KD = points_KD.cumsum(0) / torch.arange(1, 5).unsqueeze(1)
    deviations_KD = (points_KD - means_KD)[-3:]
    variance_D = points_KD.var(0, correction=0) / 2 + deviations_KD.square().sum(0) / (2 * (3 - 1))
    assert_close(posterior.covariance.diagonal()[0], variance_D, rtol=1e-3, atol=1e-9)

    trained(tmp_path / "cut", {"after": 3, "every": 2}, until=8)
    resumed, _ = trained(tmp_path / "cut", {"after": 3, "every": 2}, resume=True)
    assert resumed.collector.points == (4,)
    actual, expected = resumed.collector.posterior().tensors(), posterior.tensors()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())

    (tmp_path / "cut" / "checkpoint-10" / "collector.safetensors").unlink()
    with pytest.raises(ValueError, match="resumed at step 10, behind the first point, and there is no"):
        trained(tmp_path / "cut", {"after": 3, "every": 2}, resume=str(tmp_path / "cut" / "checkpoint-10"))


# --- Lightning


def lightning(
    package: str, folder: Path, *, resume: Path | None = None, until: int | None = None
) -> tuple[Any, Collecting, list[Tensor]]:
    """Train for 10 steps of two batches; return the trainer, what it collects, and the weights after each step."""
    lit: Any = pytest.importorskip(package)
    network, model = linear()
    collecting = Collecting(tb.SWA().collector(model), after=2, every=2)
    points: list[Tensor] = []

    class Module(lit.LightningModule):
        """Holds the network, and a moving average of it."""

        def __init__(self) -> None:
            super().__init__()
            self.model, self.ema = network, nn.Linear(3, 2).double().requires_grad_(False)

        def training_step(self, batch: Any, number: int) -> Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            if number % 2:
                points.append(torch.cat([p.detach().flatten() for p in network.parameters()]))

        def on_train_epoch_end(self) -> None:
            self.trainer.should_stop = self.trainer.global_step == until

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(network.parameters(), lr=0.3, momentum=0.9)

    rows = torch.utils.data.TensorDataset(normal(8, 3), classes(8, 2))
    trainer = lit.Trainer(
        max_epochs=5,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[collecting.lightning_callback("model")],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, 2), ckpt_path=resume)
    return trainer, collecting, points


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_collects_and_resumes(package: str, tmp_path: Path):
    _, collecting, points = lightning(package, tmp_path)
    assert len(points) == 10
    expected = collecting.collector.posterior().weights_MD[0]
    assert_close(expected, torch.stack([points[step - 1] for step in (4, 6, 8, 10)]).mean(0))

    trainer, cut, _ = lightning(package, tmp_path, until=6)
    assert cut.collector.points == (2,)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    _, resumed, _ = lightning(package, tmp_path, resume=tmp_path / "cut.ckpt")
    assert resumed.collector.points == (4,)
    assert torch.equal(resumed.collector.posterior().weights_MD[0], expected)


def test_a_loop_of_accelerate():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    network, model = linear()
    collecting, points, steps = Collecting(tb.SWA().collector(model), after=2, every=2), list[Tensor](), 0
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    rows = torch.utils.data.TensorDataset(normal(24, 3), classes(24, 2))
    net, optimizer, loader = accelerator.prepare(network, optimizer, torch.utils.data.DataLoader(rows, 2))
    for inputs, targets in loader:
        with accelerator.accumulate(net):
            accelerator.backward(nn.functional.cross_entropy(net(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            steps += 1
            collecting(net, steps, 6)
            points.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert steps == 6
    assert_close(collecting.collector.posterior().weights_MD[0], torch.stack([points[3], points[5]]).mean(0))


def test_what_is_no_schedule_is_refused():
    collector = tb.SWA(members=2).collector(linear()[1])
    for settings, message in (
        ({"after": -1}, "`after` must be a whole number of at least 0"),
        ({"every": 0}, "`every` must be a whole number of at least 1"),
        ({"member": 2}, "`member` must be below the 2 members"),
        ({"snapshots": 1}, "`snapshots` must be True or False"),
    ):
        with pytest.raises(ValueError, match=message):
            Collecting(collector, **settings)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`collector` must be a collector"):
        Collecting(tb.SWA())  # type: ignore[arg-type]
