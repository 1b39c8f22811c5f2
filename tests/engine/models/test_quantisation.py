"""int8 products come close to fp32 ones, and no row's result depends on its neighbours."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.models import quantisation
from engine.models.quantisation import QuantisedConv1d, QuantisedLinear, quantise_products

pytestmark = pytest.mark.skipif(not quantisation.is_available(), reason="no int8 operators for this processor")


def make_input(n_rows: int, width: int, seed: int) -> Tensor:
    """Rows of very unlike size and middle, as activations have."""
    random = torch.Generator().manual_seed(seed)
    scale = 10 ** torch.empty(n_rows, 1).uniform_(-2, 2, generator=random)
    middle = scale * torch.empty(n_rows, 1).uniform_(-2, 2, generator=random)
    return torch.randn(n_rows, width, generator=random) * scale + middle


@torch.inference_mode()
@given(seed=st.integers(0, 1_000), n_rows=st.integers(1, 9))
def test_products_come_close_to_those_of_float32(seed: int, n_rows: int) -> None:
    torch.manual_seed(seed)
    linear = nn.Linear(64, 48)
    x = make_input(n_rows, 64, seed)
    exact, found = linear(x), QuantisedLinear(linear.weight, linear.bias)(x)
    error = (exact - found).norm(dim=1) / exact.norm(dim=1)
    assert error.max() < 0.05


@torch.inference_mode()
@given(seed=st.integers(0, 1_000), n_rows=st.integers(2, 9))
def test_a_row_alone_and_among_others_gives_the_same_bits(seed: int, n_rows: int) -> None:
    torch.manual_seed(seed)
    linear = QuantisedLinear(torch.randn(48, 64), None)
    x = make_input(n_rows, 64, seed)
    alone = torch.cat([linear(x[i : i + 1]) for i in range(n_rows)])
    assert torch.equal(linear(x), alone)


@torch.inference_mode()
@pytest.mark.parametrize("value", [0.0, 1.0, -300.0])
def test_a_constant_row_is_no_trouble(value: float) -> None:
    linear = nn.Linear(64, 48)
    x = torch.full((1, 64), value)
    torch.testing.assert_close(
        QuantisedLinear(linear.weight, linear.bias)(x), linear(x), rtol=0.02, atol=abs(value) / 20
    )


@torch.inference_mode()
@pytest.mark.parametrize("n_rows", [1, 2, 7, 64])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_activations_by_the_largest_weights_do_not_overflow(n_rows: int, sign: float) -> None:
    weight = torch.full((48, 384), sign)
    found = QuantisedLinear(weight, None)(torch.ones(n_rows, 384))
    torch.testing.assert_close(found, torch.full((n_rows, 48), 384 * sign), rtol=1e-3, atol=0.0)


@torch.inference_mode()
def test_where_products_overflow_weights_have_seven_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight.T).clamp(-100, 100)  # as a sum of 16-bit products is where it overflows

    monkeypatch.setattr(quantisation, "_pack", lambda weight, n_levels: weight)
    monkeypatch.setattr(quantisation, "_multiply", saturating)
    assert quantisation._most_levels.__wrapped__() == 63


@torch.inference_mode()
@given(
    seed=st.integers(0, 1_000),
    shape=st.tuples(st.integers(1, 3), st.integers(3, 12)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
)
def test_convolutions_come_close_to_those_of_float32(
    seed: int, shape: tuple[int, int], kernel: int, stride: int
) -> None:
    torch.manual_seed(seed)
    conv = nn.Conv1d(40, 48, kernel, stride=stride)
    x = torch.randn(shape[0], 40, shape[1])
    exact, found = conv(x), QuantisedConv1d(conv)(x)
    assert found.shape == exact.shape
    error = (exact - found).norm(dim=1) / exact.norm(dim=1)
    assert error.max() < 0.05


def test_every_product_is_replaced() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.GELU(), nn.Linear(8, 4)), nn.Conv1d(4, 4, 3))
    quantise_products(module)
    kinds = {type(part) for part in module.modules()}
    assert {QuantisedLinear, QuantisedConv1d} < kinds and not {nn.Linear, nn.Conv1d} & kinds
