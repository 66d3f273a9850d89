"""The preference stage's objective by worked numbers, and what length debiasing does to a model trained on it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mint.errors import InvalidRequest
from recipe.preference.losses import bradley_terry
from recipe.preference.objective import PairFacts, PairObjectiveConfig, length_correlation, pair_objective

LOG3 = math.log(3)
rewards = st.lists(st.floats(-50, 50, allow_nan=False, width=32), min_size=1, max_size=6)


def make_facts(
    num_pairs: int,
    strengths: list[float] | None = None,
    ties: list[bool] | None = None,
    lengths: list[float] | None = None,
) -> PairFacts:
    plain = PairFacts.plain(num_pairs)
    return PairFacts(
        plain.strengths_N if strengths is None else torch.tensor(strengths),
        plain.is_tie_N if ties is None else torch.tensor(ties),
        plain.length_differences_N if lengths is None else torch.tensor(lengths),
    )


def value_and_slopes(
    chosen: list[float], rejected: list[float], facts: PairFacts | None = None, **changes: float
) -> tuple[float, list[float], list[float]]:
    chosen_N = torch.tensor(chosen, dtype=torch.float64, requires_grad=True)
    rejected_N = torch.tensor(rejected, dtype=torch.float64, requires_grad=True)
    loss = pair_objective(chosen_N, rejected_N, facts or make_facts(len(chosen)), PairObjectiveConfig(**changes))
    loss.backward()
    assert chosen_N.grad is not None and rejected_N.grad is not None
    return loss.item(), chosen_N.grad.tolist(), rejected_N.grad.tolist()


@settings(deadline=None)
@given(chosen=rewards, data=st.data())
def test_the_defaults_are_the_mean_bradley_terry_loss_bit_for_bit(chosen: list[float], data: st.DataObject) -> None:
    rejected = data.draw(st.lists(st.floats(-50, 50, width=32), min_size=len(chosen), max_size=len(chosen)))

    def bits(objective: Any) -> list[bytes]:
        chosen_N = torch.tensor(chosen, requires_grad=True)
        rejected_N = torch.tensor(rejected, requires_grad=True)
        loss = objective(chosen_N, rejected_N)
        loss.backward()
        assert chosen_N.grad is not None and rejected_N.grad is not None
        return [part.detach().numpy().tobytes() for part in (loss, chosen_N.grad, rejected_N.grad)]

    facts = make_facts(len(chosen), strengths=[3.0] * len(chosen), lengths=list(range(len(chosen))))
    assert bits(lambda c, r: pair_objective(c, r, facts, PairObjectiveConfig())) == bits(
        lambda c, r: bradley_terry(c, r).mean()
    )


def test_label_smoothing_by_hand() -> None:
    # σ(log 3) = 3/4: the loss is −(0.9·log 3/4 + 0.1·log 1/4), its slope σ(m) − 0.9 = −0.15.
    loss, chosen_slopes, rejected_slopes = value_and_slopes([LOG3], [0.0], label_smoothing=0.1)
    assert loss == pytest.approx(-(0.9 * math.log(0.75) + 0.1 * math.log(0.25)))
    assert (chosen_slopes, rejected_slopes) == (pytest.approx([-0.15]), pytest.approx([0.15]))


def test_smoothed_labels_are_satisfied_at_their_own_log_odds() -> None:
    _, chosen_slopes, _ = value_and_slopes([math.log(0.8 / 0.2)], [0.0], label_smoothing=0.2)
    assert chosen_slopes == pytest.approx([0.0], abs=1e-12)


def test_the_margin_grows_with_the_strength_of_the_pair() -> None:
    # Margins of 2·log 3 less a demand of 0.5·log 3·strength: log 3 for strength 2, 2·log 3 − ½·log 3 for strength 1.
    facts = make_facts(2, strengths=[2.0, 1.0])
    loss, chosen_slopes, _ = value_and_slopes([2 * LOG3] * 2, [0.0] * 2, facts, margin_coef=0.5 * LOG3)
    odds = 3**1.5
    assert loss == pytest.approx((math.log(4 / 3) + math.log(1 + 1 / odds)) / 2)
    assert chosen_slopes == pytest.approx([-0.25 / 2, -1 / (1 + odds) / 2])


def test_a_tie_is_the_mean_of_both_orders_and_knows_no_margin() -> None:
    facts = make_facts(1, ties=[True])
    loss, chosen_slopes, rejected_slopes = value_and_slopes([LOG3], [0.0], facts, margin_coef=5.0, label_smoothing=0.3)
    assert loss == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert (chosen_slopes, rejected_slopes) == (pytest.approx([0.25]), pytest.approx([-0.25]))
    assert value_and_slopes([0.0], [LOG3], facts)[0] == pytest.approx(loss)


def test_centring_by_hand() -> None:
    # 0.01·(2 + 1)² = 0.09 on top of the loss at margin 1; slope 0.01·2·3 on either side.
    plain, plain_chosen, plain_rejected = value_and_slopes([2.0], [1.0])
    loss, chosen_slopes, rejected_slopes = value_and_slopes([2.0], [1.0], centring_coef=0.01)
    assert loss == pytest.approx(plain + 0.09)
    assert chosen_slopes[0] - plain_chosen[0] == pytest.approx(0.06)
    assert rejected_slopes[0] - plain_rejected[0] == pytest.approx(0.06)


def test_length_penalty_by_hand() -> None:
    # Margins (1, 1, −2) have variance 2, lengths (2, −1, −1) too; their covariance is (2 − 1 + 2)/3 = 1.
    facts = make_facts(3, lengths=[2.0, -1.0, -1.0])
    correlation = length_correlation(torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64), facts)
    assert correlation.item() == pytest.approx(1 / math.sqrt((2 + 1) * 2))
    plain, _, _ = value_and_slopes([1.0, 1.0, -2.0], [0.0] * 3, facts)
    penalised, _, _ = value_and_slopes([1.0, 1.0, -2.0], [0.0] * 3, facts, length_debias_coef=1.5)
    assert penalised == pytest.approx(plain + 1.5 / 6)


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_the_gradient_of_the_length_penalty_is_right_and_bounded(size: float) -> None:
    facts = make_facts(4, lengths=[3.0, -1.0, 8.0, 2.0])
    margins_N = (size * torch.tensor([0.7, -0.2, 1.1, 0.4], dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: length_correlation(m, facts), margins_N)
    (slopes_N,) = torch.autograd.grad(length_correlation(margins_N, facts), margins_N)
    assert slopes_N.abs().max() <= 0.5


def test_length_says_nothing_in_pairs_that_are_ties_too_few_or_equally_long() -> None:
    lengths = [5.0, 1.0, -3.0]
    for facts, num_pairs in (
        (make_facts(3, lengths=lengths, ties=[True, False, False]), 3),
        (make_facts(3, lengths=[4.0, 4.0, 4.0]), 3),
        (make_facts(2, lengths=[4.0, -4.0]), 2),
    ):
        margins = [1.0, 2.0, 4.0][:num_pairs]
        plain = value_and_slopes(margins, [0.0] * num_pairs, facts)
        assert value_and_slopes(margins, [0.0] * num_pairs, facts, length_debias_coef=9.0) == plain


def test_a_model_blind_to_length_is_not_penalised_for_longer_winners() -> None:
    facts = make_facts(6, lengths=[9.0, 9.0, 9.0, 9.0, 9.0, -9.0])
    assert length_correlation(torch.full((6,), 1.5), facts).item() == 0.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label_smoothing": 0.5}, "objective.label_smoothing=0.5: must be at least 0 and below 0.5"),
        ({"margin_coef": -1.0}, "objective.margin_coef=-1.0: must be finite and at least 0"),
        ({"length_debias_coef": math.inf}, "objective.length_debias_coef=inf: must be finite and at least 0"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        PairObjectiveConfig(**changes)
    assert words in str(caught.value)


def replies(
    num_pairs: int, share_longer: float, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of better and worse replies, and their lengths: quality seen through noise, length, nothing.

    The better reply is the longer one in this share of the pairs; its quality is higher in all.
    """

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    quality = normal(num_pairs, 2).sort(1, descending=True).values
    longer_first = normal(num_pairs, 2).sort(1, descending=True).values
    is_longer = torch.rand(num_pairs, generator=generator) < share_longer
    lengths = torch.where(is_longer[:, None], longer_first, longer_first.flip(1))
    better, worse = (
        torch.stack([quality[:, i] + 0.7 * normal(num_pairs), lengths[:, i], normal(num_pairs)], 1) for i in (0, 1)
    )
    return better, worse, 40 + 10 * lengths[:, 0], 40 + 10 * lengths[:, 1]


def correlation_and_balanced_accuracy(seed: int, coef: float) -> tuple[float, float]:
    """Of a linear model trained on pairs of which 85 % have the longer reply first, over pairs of which half have."""
    generator = torch.Generator().manual_seed(seed)
    better, worse, better_lengths, worse_lengths = replies(800, 0.85, generator)
    weights = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.05)
    config = PairObjectiveConfig(length_debias_coef=coef)
    for start in range(0, 800, 16):
        batch = slice(start, start + 16)
        facts = make_facts(16, lengths=(better_lengths - worse_lengths)[batch].tolist())
        optimizer.zero_grad()
        pair_objective(better[batch] @ weights, worse[batch] @ weights, facts, config).backward()
        optimizer.step()
    better, worse, better_lengths, worse_lengths = replies(4000, 0.5, generator)
    with torch.no_grad():
        chosen, rejected = better @ weights, worse @ weights
    scores, lengths = torch.cat([chosen, rejected]), torch.cat([better_lengths, worse_lengths])
    return torch.corrcoef(torch.stack([scores, lengths]))[0, 1].item(), (chosen > rejected).float().mean().item()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_debiasing_takes_length_out_of_the_score_and_not_quality(seed: int) -> None:
    biased, biased_accuracy = correlation_and_balanced_accuracy(seed, 0.0)
    debiased, debiased_accuracy = correlation_and_balanced_accuracy(seed, 1.0)
    assert biased > 0.4, "the pairs are skewed enough for there to be a bias to take away"
    assert abs(debiased) < 0.5 * biased
    assert debiased_accuracy >= biased_accuracy
