"""Draws by inverting the cumulative distribution, against the slow and obvious way in float64.

Axes: _B rows, _V vocabulary.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.engine.token_draw import DrawOptions, draw_tokens

PLAIN = DrawOptions(1.0, -1, 1.0)
BELOW_ONE = 1 - 2.0**-53


def some_logits(seed: int, num_rows: int, vocab_size: int, spread: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


def distribution(logits_V: torch.Tensor, temperature: float) -> np.ndarray:
    scaled_V = logits_V.double().numpy() / temperature
    weights_V = np.exp(scaled_V - scaled_V.max())
    return weights_V / weights_V.sum()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    num_rows=st.integers(1, 9),
    vocab_size=st.sampled_from([1, 2, 100, 127, 128, 129, 500, 1024, 4097]),
    spread=st.sampled_from([0.0, 1.0, 4.0, 30.0]),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)
def test_the_token_is_the_one_the_cumulative_distribution_says(seed, num_rows, vocab_size, spread, temperature) -> None:
    logits_BV = some_logits(seed, num_rows, vocab_size, spread)
    uniforms = np.random.default_rng(seed).random(num_rows).tolist()
    tokens_B, logprobs_B = draw_tokens(logits_BV, [DrawOptions(temperature, -1, 1.0)] * num_rows, uniforms)
    for logits_V, uniform, token, logprob in zip(
        logits_BV, uniforms, tokens_B.tolist(), logprobs_B.tolist(), strict=True
    ):
        probability_V = distribution(logits_V, temperature)
        cumulative_V = np.cumsum(probability_V)
        expected = int(np.searchsorted(cumulative_V, uniform, side="right"))
        if np.abs(cumulative_V - uniform).min() > 1e-6:
            assert token == expected
        assert probability_V[token] > 0
        assert logprob == pytest.approx(np.log(probability_V[token]), abs=1e-6 * max(1.0, spread))


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 0.5, BELOW_ONE])
@pytest.mark.parametrize("possible", [[3], [0, 299], [130], [5, 127, 128, 255]])
def test_never_a_token_of_probability_zero(uniform: float, possible: list[int]) -> None:
    logits_BV = torch.full((2, 300), -torch.inf)
    logits_BV[:, possible] = torch.linspace(0, -1, len(possible))
    tokens_B, logprobs_B = draw_tokens(logits_BV, [PLAIN, DrawOptions(0.3, -1, 1.0)], [uniform, uniform])
    assert set(tokens_B.tolist()) <= set(possible)
    assert torch.isfinite(logprobs_B).all()
    if uniform == BELOW_ONE:
        assert tokens_B.tolist() == [possible[-1]] * 2
    if uniform == 0.0:
        assert tokens_B.tolist() == [possible[0]] * 2


def test_a_row_draws_the_same_alone_and_among_others() -> None:
    logits_BV = some_logits(5, 64, 1000, 3.0)
    options = [DrawOptions(0.5 + i / 64, 40 if i % 5 == 0 else -1, 0.9 if i % 7 == 0 else 1.0) for i in range(64)]
    uniforms = np.random.default_rng(1).random(64).tolist()
    tokens_B, logprobs_B = draw_tokens(logits_BV, options, uniforms)
    for i in range(64):
        token, logprob = draw_tokens(logits_BV[i : i + 1], [options[i]], [uniforms[i]])
        assert token.item() == tokens_B[i]
        assert logprob.item() == pytest.approx(logprobs_B[i].item(), abs=1e-6)


def test_frequencies_of_a_large_vocabulary() -> None:
    """Pearson's statistic over 200 equally likely ranges of tokens: its mean is 199, its deviation 20."""
    vocab_size, num_draws = 5000, 20_000
    logits_V = some_logits(3, 1, vocab_size, 1.0)[0]
    probability_V = distribution(logits_V, 1.0)
    range_V = np.minimum((np.cumsum(probability_V) * 200).astype(int), 199)
    expected = np.bincount(range_V, weights=probability_V, minlength=200) * num_draws
    uniforms = np.random.default_rng(9).random(num_draws).reshape(20, -1)
    drawn = [draw_tokens(logits_V.expand(len(row), -1), [PLAIN] * len(row), row.tolist())[0] for row in uniforms]
    counts = np.bincount(range_V[torch.cat(drawn).numpy()], minlength=200)
    assert ((counts - expected) ** 2 / expected).sum() < 199 + 5 * 20


def test_the_normaliser_leans_to_no_side() -> None:
    """Over 150,000 entries a float32 sum is off by 5e-6, always to one side; here the mean error is rounding."""
    logits_BV = some_logits(7, 16, 151_936, 2.0)
    uniforms = np.random.default_rng(2).random(16).tolist()
    tokens_B, logprobs_B = draw_tokens(logits_BV, [PLAIN] * 16, uniforms)
    exact_BV = torch.log_softmax(logits_BV.double(), dim=-1)
    error_B = logprobs_B.double() - exact_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    assert float(error_B.abs().max()) < 2e-6
    assert abs(float(error_B.mean())) < 5e-7


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_give_a_logprob_that_is_not(bad: float) -> None:
    logits_BV = some_logits(1, 2, 300, 1.0)
    logits_BV[1, 17] = bad
    tokens_B, logprobs_B = draw_tokens(logits_BV, [PLAIN] * 2, [0.3, 0.3])
    assert torch.isfinite(logprobs_B).tolist() == [True, False]
    assert 0 <= int(tokens_B[1]) < 300
