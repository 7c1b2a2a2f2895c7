import pytest
import torch

from tests.oracles import assert_close, normal
from torchbayes.model import Layout
from torchbayes.model.layout import matches

SHAPES = {"body.weight": (3, 2), "body.bias": (3,), "scale": (), "head.weight": (1, 3, 2, 2)}
LAYOUT = Layout(SHAPES)


def test_sizes_slices_and_names_by_hand():
    assert LAYOUT.sizes == (6, 3, 1, 12)
    assert LAYOUT.size == 22
    assert LAYOUT.slices == {
        "body.weight": slice(0, 6),
        "body.bias": slice(6, 9),
        "scale": slice(9, 10),
        "head.weight": slice(10, 22),
    }
    assert LAYOUT.names == tuple(SHAPES)
    assert Layout.of({n: torch.zeros(s) for n, s in SHAPES.items()}) == LAYOUT


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_split_takes_the_slices_and_join_is_its_inverse(lead: tuple[int, ...]):
    weights = normal(*lead, 22)
    views = LAYOUT.split(weights)
    for name, shape in SHAPES.items():
        assert torch.equal(views[name], weights[..., LAYOUT.slices[name]].reshape((*lead, *shape)))
    joined = LAYOUT.join(views)
    assert torch.equal(joined, weights)
    assert joined.data_ptr() != weights.data_ptr()


def test_views_share_the_memory_of_the_vector():
    weights = normal(2, 22)
    views = LAYOUT.split(weights)
    views["body.bias"][1, 2] = 5.0
    weights[0, 9] = -7.0
    assert weights[1, 8].item() == 5.0
    assert views["scale"][0].item() == -7.0


def test_split_works_on_a_vector_that_is_not_contiguous():
    weights = normal(22, 3).T
    assert torch.equal(LAYOUT.join(LAYOUT.split(weights)), weights)


def test_gradient_through_the_views_is_one_flat_tensor():
    weights = normal(22).requires_grad_()
    views = LAYOUT.split(weights)
    (gradient,) = torch.autograd.grad((views["body.weight"] ** 2).sum() + 3 * views["scale"], weights)
    expected = torch.zeros(22, dtype=torch.float64)
    expected[:6], expected[9] = 2 * weights[:6].detach(), 3.0
    assert_close(gradient, expected)


def test_join_ignores_further_names_and_orders_by_the_layout():
    tensors = {n: normal(*s, seed=i) for i, (n, s) in enumerate(SHAPES.items())}
    expected = torch.cat([tensors[n].flatten() for n in SHAPES])
    assert torch.equal(LAYOUT.join({"other": torch.ones(2), **dict(reversed(tensors.items()))}), expected)


def test_errors_say_name_and_shape():
    with pytest.raises(ValueError, match=r"must have 22 elements on its last axis.*got shape \(2, 21\)"):
        LAYOUT.split(torch.zeros(2, 21))
    with pytest.raises(ValueError, match=r"missing: body\.bias, scale"):
        LAYOUT.join({"body.weight": torch.zeros(3, 2), "head.weight": torch.zeros(1, 3, 2, 2)})
    with pytest.raises(ValueError, match=r"`body\.bias` must end in shape \(3,\); got \(4,\)"):
        LAYOUT.join({n: torch.zeros(4 if n == "body.bias" else s) for n, s in SHAPES.items()})


def test_differences_say_each_name_in_words():
    other = Layout({"body.weight": (3, 2), "body.bias": (4,), "scale": (), "extra": (1,)})
    assert LAYOUT.differences(other) == [
        "`head.weight` is missing",
        "`extra` is not expected",
        "`body.bias` has shape (4,), expected (3,)",
    ]
    assert LAYOUT.differences(LAYOUT) == []
    assert LAYOUT.differences(Layout(dict(reversed(SHAPES.items())))) == ["the names come in another order"]


def test_globs_cross_dots_and_select_keeps_the_order():
    assert LAYOUT.select("*weight") == ("body.weight", "head.weight")
    assert LAYOUT.select(["head.*", "scale"]) == ("scale", "head.weight")
    assert LAYOUT.select("nothing*") == ()
    assert matches("encoder.layer.0.lora_A.weight", "*lora*")
    assert not matches("Head.weight", "head.*")  # case counts


def test_layouts_add_in_order():
    total = LAYOUT + Layout({"likelihood.log_scale": (2,)})
    assert total.size == 24
    assert total.slices["likelihood.log_scale"] == slice(22, 24)
