"""The same work done by the library and by plain PyTorch, on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.driver.loop import Means, Reader
from torchbayes.driver.run import Shard
from torchbayes.model.sources.sources import as_source
from torchbayes.networks import build

CLASSES, LR = 10, 1e-6
Work = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """How large the work is.

    Attributes:
        rows: rows of the gradient of all the data.
        batch: rows of a step.
        steps: steps of a timed unit.
        draws: draws of a prediction.
        width: channels of the first stage of the network whose curvature is fitted; 64 for that of a ResNet-50.
        blocks: blocks of each of its stages.
        chunk: rows that go through a network at once.
        product: rows and columns of the product of matrices that shows the device's rate.
        hidden: width of the language model that is adapted; with its 16 layers, 1.1 billion weights.
        layers: its layers.
        tokens: tokens of a prompt.
    """

    rows: int = 50_000
    batch: int = 128
    steps: int = 20
    draws: int = 30
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    chunk: int = 2000
    product: int = 8192
    hidden: int = 2048
    layers: int = 16
    tokens: int = 256


SMALL = Sizes(
    rows=8, batch=4, steps=1, draws=2, width=4, blocks=(1, 1), chunk=8, product=64, hidden=32, layers=1, tokens=4
)
PROMPTS, ANSWERS, WORDS, RANK = 4, 4, 32_000, 8


def images(rows: int, device: torch.device, size: int = 32) -> tuple[Tensor, Tensor]:
    """Return made-up images and classes."""
    source = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(rows, 3, size, size, generator=source), torch.arange(rows) % CLASSES
    return inputs.to(device), targets.to(device)


def network(device: torch.device) -> nn.Module:
    """Return the ResNet-20 with filter response normalisation, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build("resnet20_frn", (3, 32, 32), CLASSES).to(device)


def model_of(net: nn.Module) -> tb.Model:
    """Return a classifier on a network."""
    return tb.Model(net, tb.likelihoods.Categorical(), tb.priors.Normal(1.0))


class Bottleneck(nn.Module):
    """A block of a ResNet-50: convolutions of 1, 3 and 1 pixels, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        layers: list[nn.Module] = []
        for fan_in, fan_out, kernel, step in sizes:
            convolution = nn.Conv2d(fan_in, fan_out, kernel, step, padding=kernel // 2, bias=False)
            layers += [convolution, nn.BatchNorm2d(fan_out), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        plain = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if plain else nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return images of four times the width."""
        return F.relu(self.body(inputs) + self.shortcut(inputs))


def bottlenecks(sizes: Sizes, device: torch.device) -> nn.Module:
    """Return a network like a ResNet-50, whose batch norms keep their statistics and are constants."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        parts: list[nn.Module] = [nn.Conv2d(3, sizes.width, 3, padding=1, bias=False), nn.ReLU()]
        inputs = sizes.width
        for stage, blocks in enumerate(sizes.blocks):
            width = sizes.width * 2**stage
            for number in range(blocks):
                parts.append(Bottleneck(inputs, width, 2 if stage and not number else 1))
                inputs = 4 * width
        net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.requires_grad_(False)
    return net.to(device).eval()


def adapted(sizes: Sizes, device: torch.device) -> nn.Module:
    """Return a Llama of bfloat16 with random weights and an adapter in float32, which answers; it is made there."""
    import peft
    import transformers

    from torchbayes.adapters import LastToken

    wide: dict[str, Any] = {"hidden_size": sizes.hidden, "intermediate_size": 4 * sizes.hidden, "vocab_size": WORDS}
    heads = max(sizes.hidden // 64, 2)
    config = transformers.LlamaConfig(num_hidden_layers=sizes.layers, num_attention_heads=heads, **wide)
    with torch.random.fork_rng(devices=[]), device:
        torch.manual_seed(0)
        base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        lora = peft.LoraConfig(r=RANK, target_modules=["q_proj", "v_proj", "lm_head"], task_type="CAUSAL_LM")
        return LastToken(peft.get_peft_model(base, lora), range(ANSWERS)).to(device)


def prompts(rows: int, sizes: Sizes, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    """Return made-up prompts and their answers."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, WORDS, (rows, sizes.tokens), generator=source).to(device)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, torch.arange(rows).to(device) % ANSWERS


def adapting_by_hand(net: nn.Module, sizes: Sizes, device: torch.device) -> Work:
    """Return the work of as many steps of plain LoRA, by fused AdamW."""
    inputs, targets = prompts(PROMPTS, sizes, device)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=LR, fused=True)

    def work() -> None:
        for _ in range(sizes.steps):
            optimizer.zero_grad()
            F.cross_entropy(net(**inputs), targets).backward()
            optimizer.step()

    return work


def stepping(method: Any, sizes: Sizes, device: torch.device, of: tuple[tb.Model, Any] | None = None) -> Work:
    """Return the work of some steps of a method, rows and the line of the log included.

    `of` are a model and rows; the ResNet-20 and images if None.
    """
    model, data = of or (model_of(network(device)), images(sizes.batch * 8, device))
    seeds, source = (0,), as_source(model, data, PROMPTS if of else sizes.batch)
    density = tb.LogDensity(model, source.num_data, plan="loop", training=method.needs.network == "train")
    weights_MD, buffers = model.starting_weights(seeds)
    state = method.init(density, weights_MD, buffers, seeds=seeds, steps_per_epoch=source.steps_per_epoch)
    reader, means = Reader(source, seeds), Means(Shard(1))

    def work() -> None:
        nonlocal state
        for _ in range(sizes.steps):
            visit = method.visit(state)
            assert visit is not None, "the run is long enough to be timed"
            state, info = method.step(density, state, reader.read(visit), donate=True)
            means.add(info)

    return work


def batches(sizes: Sizes, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield minibatches of the same rows, in random order, as one would by hand."""
    inputs, targets = images(sizes.batch * 8, device)
    while True:
        for index in torch.randperm(len(inputs)).to(device).split(sizes.batch):
            yield inputs[index], targets[index]


def training_by_hand(sizes: Sizes, device: torch.device) -> Work:
    """Return the work of as many steps of fused Adam."""
    net, rows = network(device), batches(sizes, device)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR, fused=True, weight_decay=1 / (sizes.batch * 8))

    def work() -> None:
        for _ in range(sizes.steps):
            inputs, targets = next(rows)
            loss = F.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def sampling_by_hand(sizes: Sizes, device: torch.device) -> Work:
    """Return the work of as many steps of stochastic gradient Hamiltonian Monte Carlo."""
    net, rows, num_data = network(device), batches(sizes, device), sizes.batch * 8
    weights: list[Tensor] = [*net.parameters()]
    lists: Any = torch  # whose functions on lists of tensors have no public names
    momenta = [torch.zeros_like(weight) for weight in weights]

    def work() -> None:
        for _ in range(sizes.steps):
            inputs, targets = next(rows)
            log_density = -num_data * F.cross_entropy(net(inputs), targets)
            gradients = lists._foreach_sub(torch.autograd.grad(log_density, weights), [w.detach() for w in weights])
            noise = [torch.randn_like(weight) for weight in weights]
            lists._foreach_mul_(momenta, 0.9)
            lists._foreach_add_(momenta, gradients, alpha=1e-3)
            lists._foreach_add_(momenta, noise, alpha=0.2**0.5)
            with torch.no_grad():
                lists._foreach_add_(weights, momenta, alpha=1e-3)

    return work
