"""KL to a reference with numbers worked by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mint import types
from mint.errors import InvalidRequest
from recipe.rl.datums import TrainingSequence
from recipe.rl.kl import ReferencedSequence, add_kl_penalty, discounted_future_sums, kl_metrics, mean_token_kl
from recipe.rl.reference_logprobs import fetch_reference


def sequence(tokens: list[int], is_sampled: list[bool], logprobs: list[float], i_member: int = 0) -> TrainingSequence:
    is_sampled_T = np.asarray(is_sampled)
    return TrainingSequence(
        tokens=tokens,
        is_sampled_T=is_sampled_T,
        sampler_logprobs_T=np.asarray(logprobs, dtype=np.float32),
        advantages_T=np.where(is_sampled_T, 1.0, 0.0).astype(np.float32),
        i_member=i_member,
    )


def referenced() -> list[ReferencedSequence]:
    """k1 of the three sampled tokens: -1 + 1.5 = 0.5, -2 + 3 = 1, and -1 + 1 = 0; their mean is 0.5."""
    first = sequence([5, 6, 7, 8], [False, True, True], [0.0, -1.0, -2.0])
    second = sequence([5, 6, 7], [False, True], [0.0, -1.0], i_member=1)
    return [
        ReferencedSequence(first, first.sampler_logprobs_T, np.asarray([-9.0, -1.5, -3.0], dtype=np.float32)),
        ReferencedSequence(second, second.sampler_logprobs_T, np.asarray([-9.0, -1.0], dtype=np.float32)),
    ]


def test_mean_kl_counts_sampled_tokens_only() -> None:
    assert mean_token_kl(referenced()) == pytest.approx(0.5)


def test_kl_is_reported_per_token_and_per_episode() -> None:
    assert kl_metrics(referenced()) == pytest.approx({"kl_policy_base": 0.5, "kl_policy_base_per_episode": 0.75})
    assert kl_metrics([]) == {}


def test_penalty_is_the_coefficient_times_the_mean_minus_the_tokens_own_kl() -> None:
    first, second = add_kl_penalty(referenced(), kl_penalty_coef=0.2)
    # 1 + 0.2 * (0.5 - 0.5), 1 + 0.2 * (0.5 - 1), 1 + 0.2 * (0.5 - 0); the prompt token stays at 0.
    assert first.advantages_T.tolist() == pytest.approx([0.0, 1.0, 0.9])
    assert second.advantages_T.tolist() == pytest.approx([0.0, 1.1])
    assert first.advantages_T.dtype == np.float32


def test_penalty_sums_to_zero_over_the_batch_and_leaves_its_input_alone() -> None:
    rows = referenced()
    penalised = add_kl_penalty(rows, kl_penalty_coef=3.0)
    added = sum(
        float((new.advantages_T - row.sequence.advantages_T).sum()) for new, row in zip(penalised, rows, strict=True)
    )
    assert added == pytest.approx(0.0, abs=1e-6)
    assert rows[0].sequence.advantages_T.tolist() == [0.0, 1.0, 1.0]


def test_a_token_answers_for_later_kl_as_far_as_the_discount_says() -> None:
    first, second = add_kl_penalty(referenced(), kl_penalty_coef=0.2, discount=0.5)
    # The penalties of the first row's tokens are 0 and -0.1; with half of the later one the first has -0.05.
    assert first.advantages_T.tolist() == pytest.approx([0.0, 0.95, 0.9])
    assert second.advantages_T.tolist() == pytest.approx([0.0, 1.1])


def test_targets_between_two_turns_count_as_steps_of_the_discount() -> None:
    row = sequence([5, 6, 7, 8, 9], [True, False, False, True], [-1.0, 0.0, 0.0, -1.0])
    reference_T = np.asarray([-1.0, -5.0, -5.0, -3.0], dtype=np.float32)
    # k1 is 0 and 2, their mean 1: penalties 1, 0, 0, -1 at coefficient 1, and 1 - 0.5^3 for the first token.
    (penalised,) = add_kl_penalty([ReferencedSequence(row, row.sampler_logprobs_T, reference_T)], 1.0, discount=0.5)
    assert penalised.advantages_T.tolist() == [1.0 + 0.875, 0.0, 0.0, 0.0]


@given(st.lists(st.floats(-5, 5, width=32), max_size=12), st.floats(0, 1))
def test_discounted_sums_are_what_their_formula_says(values: list[float], discount: float) -> None:
    expected = [sum(discount ** (s - t) * values[s] for s in range(t, len(values))) for t in range(len(values))]
    found = discounted_future_sums(np.asarray(values, dtype=np.float32), discount)
    assert found.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_no_sampled_token_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="at least one sampled token"):
        mean_token_kl([])


class ScriptedClient:
    """compute_logprobs answers token i with -factor * token; counts how many requests were waiting at once."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.waiting = 0
        self.most_waiting = 0

    async def compute_logprobs(
        self, prompt: types.ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        assert prompt_logprobs_last_n is not None
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        tokens = prompt.to_ints()
        num_unscored = len(tokens) - prompt_logprobs_last_n
        return [None] * num_unscored + [-self.factor * token for token in tokens[num_unscored:]]


def fetch(
    sequences: list[TrainingSequence], reference: ScriptedClient, policy: ScriptedClient, temperature: float
) -> list[ReferencedSequence]:
    reference_client: Any = reference
    policy_client: Any = policy
    return asyncio.run(fetch_reference(sequences, reference_client, policy_client, temperature))


def test_reference_logprobs_line_up_with_the_sampled_targets_and_are_fetched_together() -> None:
    client, policy = ScriptedClient(0.5), ScriptedClient(0.25)
    rows = fetch([row.sequence for row in referenced()], client, policy, temperature=1.0)
    # The prompt's own target is not scored.
    assert rows[0].reference_logprobs_T.tolist() == [0.0, -3.5, -4.0]
    assert rows[0].policy_logprobs_T.tolist() == [0.0, -1.0, -2.0]
    assert rows[1].reference_logprobs_T.tolist() == [0.0, -3.5]
    assert (client.most_waiting, policy.most_waiting) == (2, 0)


def test_at_another_temperature_the_policys_logprobs_are_computed_at_temperature_one() -> None:
    rows = fetch([referenced()[1].sequence], ScriptedClient(0.5), ScriptedClient(0.25), temperature=0.7)
    assert rows[0].policy_logprobs_T.tolist() == [0.0, -1.75]
    assert rows[0].token_kl_T.tolist() == [0.0, 1.75]
