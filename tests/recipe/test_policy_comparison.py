"""Win rates of two policies by single replies, and the comparison on a real policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mint
from recipe.policy_comparison import compare_policies, reply_win_rate
from recipe.tokenizer_utils import get_tokenizer
from renderers import Message, get_renderer, get_text


def test_the_win_rate_of_single_replies_by_hand() -> None:
    before = np.array([[0.0, 1.0], [0.5, 0.5]])
    after = np.array([[1.0, 1.0, 0.0], [0.5, 0.6, 0.4]])
    # First prompt: 1 beats 0 and draws with 1 (twice), 0 draws with 0 and loses to 1. Second: draws, wins, loses.
    assert reply_win_rate(before, after) == pytest.approx(((1 + 0.5) * 2 + 0.5 + 0 + (0.5 + 1 + 0) * 2) / 12)
    assert reply_win_rate(before, before) == 0.5
    assert reply_win_rate(after, before) == pytest.approx(1 - reply_win_rate(before, after))


async def test_a_policy_compared_with_itself_draws(service: mint.ServiceClient, tiny_model_dir: Path) -> None:
    client = await service.create_sampling_client_async(base_model=str(tiny_model_dir))
    prompts: list[list[Message]] = [[{"role": "user", "content": text}] for text in ("one", "two", "three")]
    renderer = get_renderer("role_colon", get_tokenizer(str(tiny_model_dir)))

    async def length(conversation: list[Message]) -> float:
        return float(len(get_text(conversation[-1])))

    compared = await compare_policies(
        client, client, prompts, renderer, length, replies_per_prompt=2, max_tokens=5, seed=1
    )
    assert compared.before == compared.after == compared.scores_before_PR.mean()
    assert compared.win_rate == compared.reply_win_rate == 0.5
    assert abs(compared.kl_per_reply) < 1e-3 and abs(compared.kl_per_token) < 1e-3
