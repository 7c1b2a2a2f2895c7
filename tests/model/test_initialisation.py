"""Fresh weights are those that the network's own initialisers draw, and what cannot be drawn so is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchbayes as tb
from torchbayes.model import Network

SMALL = 0.02


def drawn(module: nn.Module, random: str = "*") -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The random parameters that the module holds, and those of three fresh members."""
    network = Network(module, random)
    return network.layout.split(network.weights()), network.layout.split(network.fresh([0, 1, 2])[0])


def scale(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def assert_same_scales(module: nn.Module, random: str = "*") -> None:
    """Constants are kept, and numbers are as large as in the module, to six standard errors of both."""
    given, fresh = drawn(module, random)
    for name, held in given.items():
        if (held == held.flatten()[0]).all() and held.numel() > 1:
            assert (fresh[name] == held.flatten()[0]).all(), name
        else:
            # a root mean square of n normal numbers is known to 1/√(2n)
            error = 6 * math.sqrt(1 / (2 * held.numel()) + 1 / (6 * held.numel()))
            assert abs(math.log(scale(fresh[name]) / scale(held))) < error, name
            assert not torch.equal(fresh[name][0], fresh[name][1]), name


# --- stand-ins that follow the conventions of others ---


class HuggingFace(nn.Module):
    """Marks modules that it has initialised and passes over them, as `PreTrainedModel` does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(30, 40), nn.LayerNorm(40), nn.Linear(40, 30)
        self.query = nn.Parameter(torch.empty(5, 40))  # no part initialises it
        self.init_weights()

    def init_weights(self) -> None:
        for part in self.modules():
            if not getattr(part, "_is_hf_initialized", False):
                self._init_weights(part)
                part._is_hf_initialized = True  # type: ignore[assignment]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=SMALL)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(std=SMALL)
        elif isinstance(module, HuggingFace):
            nn.init.normal_(module.query, std=3 * SMALL)


class Applied(nn.Module):
    """`self.apply(self._init_weights)`, as many a research code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 40), nn.Linear(40, 30, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=SMALL)


class Timm(nn.Module):
    """`init_weights` with optional arguments, and parameters of the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.zeros(1, 40)), nn.Parameter(torch.empty(7, 40))
        self.head = nn.Linear(40, 5)
        self.init_weights("")

    def init_weights(self, mode: str = "") -> None:
        nn.init.trunc_normal_(self.place, std=SMALL)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, -math.log(5))


class Inside(nn.Module):
    """A head at zero and a scale, set after `super().__init__()` where no initialiser can be seen."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.scale = nn.Linear(20, 30), nn.Linear(30, 4), nn.Parameter(torch.full((30,), 1e-4))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        nn.init.zeros_(self.body.bias)


CONVENTIONS: dict[str, Callable[[], nn.Module]] = {
    "hugging face": HuggingFace,
    "hugging face inside": lambda: nn.Sequential(HuggingFace(), nn.Linear(30, 3)),
    "applied": Applied,
    "timm": Timm,
    "constants": Inside,
    "attention": lambda: nn.MultiheadAttention(40, 4),
}


@pytest.mark.parametrize("make", CONVENTIONS.values(), ids=CONVENTIONS.keys())
def test_networks_are_initialised_as_they_came(make: Callable[[], nn.Module], untouched_rng: None):
    with torch.random.fork_rng(devices=[]):
        module = make()
    assert_same_scales(module)


DIFFERS = r"`{}` has a root mean square of {} in the network and {} after its initialisers, so its constructor"


def test_what_a_network_has_learned_is_not_what_members_start_at():
    module = HuggingFace()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(3 * SMALL * torch.randn(parameter.shape))
    with pytest.warns(UserWarning, match=DIFFERS.format("embed.weight", r"0\.06\d*", r"0\.0[12]\d*")):
        _, fresh = drawn(module)
    assert scale(fresh["embed.weight"]) == pytest.approx(SMALL, rel=0.1)
    assert scale(fresh["query"]) == pytest.approx(3 * SMALL, rel=0.2)
    assert (fresh["out.bias"] == 0).all()
    assert (fresh["norm.weight"] == 1).all()


class Residual(nn.Module):
    """As nanoGPT: `self.apply(self._init_weights)`, then projections into the residual stream at σ/√(2L)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 64) for _ in range(depth))
        self.projections = nn.ModuleList(nn.Linear(64, 16) for _ in range(depth))
        self.apply(self._init_weights)
        for name, parameter in self.projections.named_parameters():
            if name.endswith("weight"):
                nn.init.normal_(parameter, std=SMALL / math.sqrt(2 * depth))

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=SMALL)
            nn.init.zeros_(module.bias)


class Kaiming(nn.Module):
    """As the ResNets of torchvision: the constructor draws the weights of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, bias=False), nn.Conv2d(16, 16, 3, bias=False)
        for layer in (self.first, self.second):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def test_weights_that_a_constructor_draws_after_its_initialiser_are_not_replaced_in_silence():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shallow, deep, kaiming = Residual(2), Residual(12), Kaiming()
    with pytest.warns(
        UserWarning, match=DIFFERS.format("projections.0.weight", r"0\.0\d+", r"0\.0\d+") + ".* 2 parameters"
    ):
        Network(shallow).fresh([0, 1])
    with pytest.raises(ValueError, match=DIFFERS.format("projections.0.weight", r"0\.004\d*", r"0\.0\d+")):
        Network(deep).fresh([0])
    with pytest.warns(
        UserWarning, match=DIFFERS.format("second.weight", r"0\.1\d*", r"0\.0\d+") + ".* Give Model a function"
    ):
        Network(kaiming).fresh([0])
    Network(lambda: Residual(12)).fresh([0])


class Plain(nn.Module):
    """Layers of PyTorch as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([
            nn.Linear(8, 8),
            nn.Conv2d(4, 6, 3),
            nn.ConvTranspose1d(4, 6, 3),
            nn.Embedding(20, 5, padding_idx=0),
            nn.Bilinear(4, 4, 5),
            nn.LSTM(8, 6),
            nn.TransformerEncoderLayer(8, 2, 16),
            nn.Transformer(8, 2, 1, 1, 16),
        ])


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_layers_of_pytorch_differ_by_chance_alone():
    for seed in range(8):  # a warning is an error
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            Network(Plain()).fresh([seed])


# --- adapters ---


class Config:
    def __init__(self, init_lora_weights: bool | str) -> None:
        self.init_lora_weights = init_lora_weights


class Lora(nn.Module):
    """As a layer of PEFT: B is zero, and A may be normal."""

    adapter_layer_names = ("lora_A", "lora_B")

    def __init__(self, base: nn.Linear, init_lora_weights: bool | str) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"mine": nn.Linear(base.in_features, 8, bias=False)})
        self.lora_B = nn.ModuleDict({"mine": nn.Linear(8, base.out_features, bias=False)})
        self.reset_lora_parameters("mine", init_lora_weights)

    def reset_lora_parameters(self, adapter_name: str, init_lora_weights: bool | str) -> None:
        first, second = (getattr(self, name)[adapter_name].weight for name in self.adapter_layer_names)
        if init_lora_weights is False:
            return
        if init_lora_weights == "pissa":
            raise ValueError("Unknown initialization init_lora_weights='pissa'")
        if init_lora_weights == "gaussian":
            nn.init.normal_(first, std=2.0)
        else:
            nn.init.kaiming_uniform_(first, a=math.sqrt(5))
        nn.init.zeros_(second)

    def reset_other_parameters(self, adapter_name: str, rank: int) -> None:
        raise AssertionError("needs what no configuration has")

    def forward(self, inputs: Tensor) -> Tensor:
        low = self.lora_B["mine"](self.lora_A["mine"](inputs))
        return self.base_layer(inputs) + low


def adapted(init: bool | str = True) -> nn.Module:
    made = nn.Sequential(Lora(nn.Linear(64, 64), init), nn.Tanh(), nn.Linear(64, 2))
    made.peft_config = {"mine": Config(init)}  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("init", [True, False, "gaussian"])
def test_adapters_are_initialised_as_their_configuration_says(init: bool | str):
    assert_same_scales(adapted(init), "*lora*")


@pytest.mark.parametrize("init", [True, "gaussian"])
def test_an_adapter_that_was_trained_begins_at_the_frozen_network_again(init: bool | str):
    module = adapted(init)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "lora" in name:
                parameter.normal_(std=5.0)
    _, fresh = drawn(module, "*lora*")
    assert (fresh["0.lora_B.mine.weight"] == 0).all()
    expected = 2.0 if init == "gaussian" else 1 / math.sqrt(3 * 64)
    assert scale(fresh["0.lora_A.mine.weight"]) == pytest.approx(expected, rel=0.15)


def test_a_fit_of_adapters_begins_at_the_frozen_network():
    module, inputs = adapted(), torch.randn(6, 64)
    model = tb.Model(module, tb.likelihoods.Categorical(), random="*lora*")
    weights_MD, _ = model.starting_weights([3, 4])
    for weights_D in weights_MD:
        torch.testing.assert_close(model.network(weights_D, inputs), module(inputs))


def test_an_adapter_made_from_frozen_weights_is_refused():
    module = adapted()
    module.peft_config["mine"].init_lora_weights = "pissa"  # type: ignore[index,union-attr]
    with pytest.raises(
        ValueError, match=r"initialiser of `0` \(Lora\) failed: Unknown .* function that makes the network"
    ):
        drawn(module, "*lora*")


# --- what cannot be seen ---


class Scaled(nn.Module):
    """The constructor scales a layer of PyTorch."""

    def __init__(self, factor: float, width: int = 40) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 50)
        with torch.no_grad():
            self.layer.weight *= factor


@pytest.mark.parametrize(("factor", "held"), [(0.05, "0.0046"), (20.0, "1.8")])
def test_weights_of_quite_another_size_are_refused(factor: float, held: str):
    with pytest.raises(ValueError, match=DIFFERS.format("layer.weight", held, "0.09.*")):
        drawn(Scaled(factor))
    by_factory, _ = Network(lambda: Scaled(factor)).fresh([0])
    assert scale(by_factory[:, :2000]) == pytest.approx(factor / math.sqrt(3 * 40), rel=0.1)


@pytest.mark.parametrize("factor", [0.35, 0.8, 6.0])
def test_weights_that_training_may_have_moved_are_drawn_afresh(factor: float):
    with pytest.warns(UserWarning, match="members start at what initialisers give: `layer.weight` .* was trained"):
        _, fresh = drawn(Scaled(factor))
    assert scale(fresh["layer.weight"]) == pytest.approx(1 / math.sqrt(3 * 40), rel=0.05)


def test_a_few_weights_may_be_of_any_size():
    """The last layer of a regression with targets in the thousands."""
    module = nn.Linear(50, 1)
    with torch.no_grad():
        module.weight.normal_(std=300.0)
        module.bias.fill_(4000.0)
    _, fresh = drawn(module)
    assert scale(fresh["weight"]) == pytest.approx(1 / math.sqrt(150), rel=0.2)
    assert fresh["bias"].abs().max() < 0.15


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_parameters_that_no_initialiser_writes_are_named():
    module = nn.Sequential(nn.Linear(3, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    with pytest.raises(
        ValueError, match=r"`1.parametrizations.weight` .* owns original0, and no `reset_parameters` or"
    ):
        drawn(module)


def test_a_trained_module_is_refused_where_it_was_given_for_its_scale_and_taken_as_a_start():
    module = nn.Sequential(nn.Embedding(20, 10), nn.Flatten(), nn.Linear(10, 2))
    nn.init.normal_(module[0].weight, std=SMALL)  # type: ignore[arg-type]
    data = torch.randint(20, (8, 1)), torch.randint(2, (8,))
    model = tb.Model(module, tb.likelihoods.Categorical())
    with pytest.raises(ValueError, match=r"`0.weight` has a root mean square of 0.021 .* pass `start=` to fit"):
        tb.fit(model, data, tb.MAP(epochs=1), callbacks=())
    begun = tb.fit(model, data, tb.MAP(epochs=1, optimizer=tb.SGD(lr=1e-12)), start=module, callbacks=())
    torch.testing.assert_close(begun.sample(1)[0], model.given_weights())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_single_number_that_nothing_initialises_is_kept(shape: tuple[int, ...]):
    """As the temperature of an attention that begins at one."""
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_parameter("temperature", nn.Parameter(torch.full(shape, 1.5)))
    _, fresh = drawn(module)
    assert torch.equal(fresh["temperature"], torch.full((3, *shape), 1.5))


def test_loaded_weights_that_are_not_used_are_said():
    module = HuggingFace()
    with torch.no_grad():
        module.embed.weight *= 50  # of any size: a warning says that it was loaded
    module.embed.weight._is_hf_initialized = True  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match=r"1 of the random parameters were loaded .* `embed.weight`.* Pass `start=`"):
        Network(module).fresh([0])
    Network(module, "out.*").fresh([0])  # no warning: what was loaded is constant


# --- the real thing ---

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2}
BERT = {**SIZES, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 90, "max_position_embeddings": 16}
GPT2 = {"vocab_size": 50, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2, "eos_token_id": 0}


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


@pytest.mark.filterwarnings("ignore")
class TestReal:
    def test_bert(self) -> None:
        assert_same_scales(bert())
        assert_same_scales(bert(), "classifier.*")

    def test_gpt2(self) -> None:
        transformers = pytest.importorskip("transformers")
        assert_same_scales(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))

    @pytest.mark.parametrize("init", [True, False, "gaussian"])
    def test_lora(self, init: bool | str) -> None:
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=init)
        assert_same_scales(peft.get_peft_model(bert(), config))

    def test_lora_and_a_classifier_that_is_trained_beside_it(self) -> None:
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query"])
        assert_same_scales(peft.get_peft_model(bert(), config))

    @pytest.mark.parametrize("name", ["IA3Config", "VeraConfig", "LoHaConfig", "LoKrConfig"])
    def test_other_adapters(self, name: str) -> None:
        peft = pytest.importorskip("peft")
        more = {"feedforward_modules": []} if name == "IA3Config" else {"r": 4}
        module = peft.get_peft_model(bert(), getattr(peft, name)(target_modules=["query", "value"], **more))
        assert_same_scales(module)

    def test_a_checkpoint_is_said(self, tmp_path: Any) -> None:
        transformers = pytest.importorskip("transformers")
        bert().save_pretrained(tmp_path)
        module = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
        with pytest.warns(UserWarning, match=r"random parameters were loaded from a checkpoint"):
            Network(module).fresh([0])

    def test_vision_transformer(self) -> None:
        timm = pytest.importorskip("timm")
        sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
        assert_same_scales(timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes))
