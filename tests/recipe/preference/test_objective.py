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
from recipe.preference.objective import LengthModel, PairFacts, PairObjectiveConfig, pair_objective

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
        plain.length_log_odds_N if lengths is None else torch.tensor(lengths),
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

    facts = make_facts(len(chosen), strengths=[3.0] * len(chosen), lengths=[float(i) for i in range(len(chosen))])
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


def test_length_debiasing_adds_what_length_says_in_training() -> None:
    # A margin of log 3 beside log-odds of −log 3 from length is a draw; half of them leave ½·log 3.
    facts = make_facts(1, lengths=[-LOG3])
    loss, chosen_slopes, _ = value_and_slopes([LOG3], [0.0], facts, length_debias_coef=1.0)
    assert (loss, chosen_slopes) == (pytest.approx(math.log(2)), pytest.approx([-0.5]))
    half, _, _ = value_and_slopes([LOG3], [0.0], facts, length_debias_coef=0.5)
    assert half == pytest.approx(math.log(1 + 3**-0.5))


def test_a_length_model_of_one_size_of_difference_by_hand() -> None:
    # The longer reply, by 5 tokens, wins 6 of 8: with targets of 0.9 its chance is 0.75·0.9 + 0.25·0.1 = 0.7.
    model = LengthModel.fit([5] * 6 + [-5] * 2)
    log_odds = model.log_odds(torch.tensor([5, -5, 0])).tolist()
    assert log_odds == pytest.approx([math.log(7 / 3), -math.log(7 / 3), 0.0], abs=1e-4)


def test_the_length_model_finds_the_odds_that_lengths_were_drawn_with() -> None:
    generator = torch.Generator().manual_seed(0)
    differences = torch.randint(1, 30, (20_000,), generator=generator)
    chances = torch.sigmoid(0.8 + 0.05 * differences)
    is_longer = torch.rand(20_000, generator=generator) < chances
    model = LengthModel.fit(torch.where(is_longer, differences, -differences).tolist())
    assert (model.sign, model.slope) == (pytest.approx(0.8, abs=0.1), pytest.approx(0.05, abs=0.01))


@settings(max_examples=50)
@given(differences=st.lists(st.integers(-500, 500), max_size=30))
def test_no_point_near_the_length_model_is_better(differences: list[int]) -> None:
    model = LengthModel.fit(differences)
    lengths = torch.tensor(differences, dtype=torch.float64)
    target = (len(differences) + 1) / (len(differences) + 2)

    def loss(candidate: LengthModel) -> float:
        odds = candidate.log_odds(lengths)
        total = -target * torch.nn.functional.logsigmoid(odds) - (1 - target) * torch.nn.functional.logsigmoid(-odds)
        return total.sum().item()

    assert math.isfinite(model.sign) and math.isfinite(model.slope)
    size = max((abs(difference) for difference in differences), default=1) or 1
    for sign, slope in ((0.1, 0.0), (-0.1, 0.0), (0.0, 0.1 / size), (0.0, -0.1 / size)):
        assert loss(model) <= loss(LengthModel(model.sign + sign, model.slope + slope)) + 1e-6


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
    differences = (better_lengths - worse_lengths).round().int()
    length_log_odds = LengthModel.fit(differences.tolist()).log_odds(differences).tolist()
    weights = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.05)
    config = PairObjectiveConfig(length_debias_coef=coef)
    for start in range(0, 800, 8):
        batch = slice(start, start + 8)
        facts = make_facts(8, lengths=length_log_odds[batch])
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
