"""Derivatives in points: polynomials and tanh in closed form, autograd, and the same under vmap and in weights."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from torchbayes.inverse import derivatives, gradient, laplacian
from torchbayes.inverse.derivatives import Field

DOUBLE = torch.float64


def points(rows=7, coordinates=1):
    return torch.randn(rows, coordinates, generator=torch.Generator().manual_seed(3), dtype=DOUBLE)


def stack(coordinates=1, outputs=2, activation=nn.Tanh):
    torch.manual_seed(5)
    layers = [nn.Linear(coordinates, 6), activation(), nn.Linear(6, 5, bias=False), activation(), nn.Linear(5, outputs)]
    return nn.Sequential(*layers).double()


def by_autograd(function, x, *, order, axis):
    """Derivatives of every output by reverse mode, order after order."""
    x = x.clone().requires_grad_()
    values = function(x)
    computed = [values]
    for _ in range(order):
        columns = []
        for column in computed[-1].unbind(1):
            columns.append(torch.autograd.grad(column.sum(), x, create_graph=True)[0][:, axis])
        computed.append(torch.stack(columns, 1))
    return [each.detach() for each in computed]


def test_a_polynomial():
    x = points(coordinates=2)
    a, b = x.unbind(1)

    def cubic(y):
        return (y[:, :1] ** 3 * y[:, 1:] ** 2).expand(-1, 1)

    expected = [a**3 * b**2, 3 * a**2 * b**2, 6 * a * b**2, 6 * b**2, 0 * a]
    for computed, right in zip(derivatives(cubic, x, order=4), expected, strict=True):
        torch.testing.assert_close(computed[:, 0], right)
    torch.testing.assert_close(gradient(cubic, x)[:, 0], torch.stack([3 * a**2 * b**2, 2 * a**3 * b], 1))
    torch.testing.assert_close(laplacian(cubic, x)[:, 0], 6 * a * b**2 + 2 * a**3)
    mixed = derivatives(lambda y: derivatives(cubic, y, axis=1)[1], x)[1]
    torch.testing.assert_close(mixed[:, 0], 6 * a**2 * b)
    torch.testing.assert_close(gradient(lambda y: y[:, 0] * y[:, 1], x), x.flip(1))


def test_one_tanh_in_closed_form():
    net = nn.Sequential(nn.Linear(1, 1), nn.Tanh()).double()
    x = points()
    w, b = (p.item() for p in net.parameters())
    h = torch.tanh(w * x + b)
    g = 1 - h**2
    expected = [h, w * g, -2 * w**2 * h * g, w**3 * (6 * h**2 - 2) * g, w**4 * (16 * h - 24 * h**3) * g]
    for computed, right in zip(derivatives(Field(net), x, order=4), expected, strict=True):
        torch.testing.assert_close(computed, right)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Softplus, nn.SiLU, nn.GELU])  # the last two have no forward mode
@pytest.mark.parametrize("axis", [0, -1])
def test_networks_against_autograd(activation, axis):
    net, x = stack(2, activation=activation), points(coordinates=2)
    assert Field(net).is_plain == (activation is nn.Tanh)
    expected = by_autograd(net, x, order=3, axis=axis)
    for computed, right in zip(derivatives(Field(net), x, order=3, axis=axis), expected, strict=True):
        torch.testing.assert_close(computed, right)
    torch.testing.assert_close(Field(net)(x), net(x))


def test_a_linear_network_has_no_second_derivative():
    net, x = nn.Sequential(nn.Linear(2, 3)).double(), points(coordinates=2)
    value, first, second = derivatives(Field(net), x, order=2)
    torch.testing.assert_close(value, net(x))
    torch.testing.assert_close(first, next(net.parameters())[:, 0].expand(7, 3))
    assert not second.any()


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.SiLU])
def test_gradients_of_the_program_do_not_matter(activation):
    net, x = stack(activation=activation), points()
    expected = derivatives(net, x, order=2)[2].detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(derivatives(net, x.clone(), order=2)[2], expected)


def test_hooks_are_kept():
    net, seen = stack(), []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    assert not Field(net).is_plain
    Field(net)(points())
    assert seen


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.SiLU])
def test_weights_under_vmap_and_their_gradients(activation):
    net, x = stack(activation=activation), points()
    many = {n: torch.stack([p, 2 * p, -p]).detach().requires_grad_() for n, p in net.named_parameters()}

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, y):
            u, _, curved = derivatives(Field(self.net), y, order=2)
            return (u * curved).sum()

    module = Second()

    def total(weights):
        return functional_call(module, {f"net.{n}": w for n, w in weights.items()}, (x,))

    together = vmap(total)(many)
    alone = torch.stack([total({n: w[m] for n, w in many.items()}) for m in range(3)])
    torch.testing.assert_close(together, alone)
    first = torch.autograd.grad(together.sum(), [*many.values()])
    second = torch.autograd.grad(alone.sum(), [*many.values()])
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)
