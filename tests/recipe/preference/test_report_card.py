"""The report card: of scorers that are a known function of the text, of a scorer of numbers, and of a real run."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mint
from mint.errors import InvalidRequest
from recipe.preference import report_card
from recipe.preference.data import ListPreferenceDatasetBuilder
from recipe.preference.examined_scorer import ExaminedScorer
from recipe.preference.judge_wording import reworded
from recipe.preference.losses import wilson_interval
from recipe.preference.probes import PROBES
from recipe.preference.readouts import SequenceLogprob, Verdict, VerdictAndLikelihood
from recipe.preference.reliability import brier_score
from recipe.preference.report_card import CARD_FILE, ReportCardConfig, examine, read_report_card
from recipe.preference.scorer import RewardScale, ScorerSpec
from recipe.preference.train import Config, main
from recipe.preference.types import PairExampleConfig, PreferencePair, prompt_key
from renderers import Message, get_text


class Scorer:
    """A function of the reply's text as a ConversationScorer that remembers what it was asked."""

    def __init__(self, score_of: Callable[[str], float]) -> None:
        self.score_of = score_of
        self.asked: list[str] = []

    async def score(self, conversation: list[Message]) -> float:
        self.asked.append(prompt_key(conversation))
        return self.score_of(get_text(conversation[-1]))


def pair(prompt: str, chosen: str, rejected: str, source: str | None = None, is_tie: bool = False) -> PreferencePair:
    return PreferencePair(
        [Message(role="user", content=prompt)],
        Message(role="assistant", content=chosen),
        Message(role="assistant", content=rejected),
        source,
        is_tie=is_tie,
    )


def word_pairs(num_pairs: int, seed: int = 0, num_prompts: int = 25) -> list[PreferencePair]:
    """Replies of random words; the chosen one is longer in about three of four pairs."""
    rng = random.Random(seed)
    words = ["red", "green", "blue", "amber", "violet", "ochre", "umber", "teal"]
    pairs = []
    for i in range(num_pairs):
        short, long = sorted(rng.sample(range(2, 12), 2))
        lengths = (long, short) if rng.random() < 0.75 else (short, long)
        chosen, rejected = (" ".join(rng.choices(words, k=k)) + f" {i}." for k in lengths)
        pairs.append(pair(f"Name colours, number {i % num_prompts}.", chosen, rejected, source="ab"[i % 2]))
    return pairs


async def test_of_a_scorer_that_counts_characters_the_card_says_so() -> None:
    card = await examine(ExaminedScorer(Scorer(len)), word_pairs(80))
    assert card["accuracy"] == card["length_only_accuracy"]
    assert card["beats_length_only"]["num_pairs"] == 0
    assert card["length_balanced"]["value"] == 0.5 and card["length_balanced"]["num_pairs"] > 10
    assert card["correlations"]["characters"] == 1.0 and card["pearson_correlations"]["characters"] == 1.0
    assert card["probes"]["repeated"]["share_passed"] == 0.0 and not card["probes"]["repeated"]["passed"]
    assert card["probes"]["empty"]["share_passed"] == 1.0 and card["probes"]["cut"]["share_passed"] == 1.0
    assert card["probes_passed"] is False
    assert card["paraphrase"] == {"applicable": False, "reason": "not applicable: this readout asks no question"}


async def test_where_the_model_and_length_disagree() -> None:
    scorer = Scorer(lambda text: text.count("!"))
    agreeing = [pair(str(i), "long and right!", "short") for i in range(6)]
    better = [pair(str(i), "right!", "long and wrong") for i in range(6, 9)]
    worse = [pair("worse", "longer and right", "wrong!")]
    same_length = [pair("same", "right!", "wrong.")]
    pairs = agreeing + better + worse + same_length
    card = await examine(ExaminedScorer(scorer), pairs)
    assert card["length_only_accuracy"]["value"] == pytest.approx(7.5 / 11, abs=1e-6)
    assert card["beats_length_only"]["value"] == 0.8 and card["beats_length_only"]["num_pairs"] == 5
    # Swapped, the shorter reply is the chosen one more often: the rule to beat is the other one, and is right as often.
    card = await examine(ExaminedScorer(Scorer(lambda text: -text.count("!"))), [one.swapped() for one in pairs])
    assert card["beats_length_only"]["value"] == 0.8 and card["beats_length_only"]["num_pairs"] == 5


async def test_of_a_scorer_that_sees_no_difference_the_card_says_so() -> None:
    card = await examine(ExaminedScorer(Scorer(lambda text: 0.0)), word_pairs(80))
    assert card["accuracy"]["value"] == 0.5 and card["brier"] == 0.25 and card["ece"] == 0.0
    assert set(card["correlations"].values()) == {None}
    assert {result["share_passed"] for result in card["probes"].values()} == {0.0}


def good_score(text: str) -> float:
    """Knows every degraded reply of word_pairs: few words, repeated or cut ones, and what is no list of colours."""
    is_whole = text.count(".") == 1 and text.endswith(".") and "number" not in text
    return 10.0 if is_whole and "help" not in text else -10.0


async def test_a_scorer_that_knows_bad_replies_passes_the_probes() -> None:
    pairs = word_pairs(30)
    card = await examine(ExaminedScorer(Scorer(good_score)), pairs)
    results = card["probes"]
    # The reply to another prompt is a list of colours as well: this scorer does not see that it is the wrong one.
    assert results.pop("other_prompt")["share_passed"] == 0.0
    assert {result["share_passed"] for result in results.values()} == {1.0}
    low, high = wilson_interval(1.0, 25)
    assert (results["cut"]["low"], results["cut"]["high"]) == (round(low, 6), round(high, 6))
    assert {result["mean_margin"] for result in results.values()} == {20.0}
    assert {result["num"] for result in results.values()} == {25}


async def test_worked_card() -> None:
    # Scores stand in the replies; a difference of 1 is log 3 in log-odds, so the model says 3/4.
    pairs = [
        pair("a", "1", "0.0", "x"),
        pair("b", "2", "1.0", "x"),
        pair("c", "2", "3.0", "y"),
        pair("d", "5", "5.0"),
        pair("e", "7", "9", is_tie=True),
    ]
    scorer = Scorer(lambda text: float(text) if text[:1].isdigit() else -50.0)
    examined = ExaminedScorer(scorer, raw_per_score=2 * math.log(3.0), temperature=2.0)
    card = await examine(examined, pairs, ReportCardConfig(max_probe_prompts=0))
    low, high = wilson_interval(2.5 / 4, 4)
    assert card["accuracy"] == {"value": 0.625, "low": round(low, 6), "high": round(high, 6), "num_pairs": 4}
    assert card["length_only_accuracy"]["value"] == 0.0
    assert card["length_balanced"] == {"value": None, "low": None, "high": None, "num_pairs": 0}
    assert {name: of["value"] for name, of in card["by_source"].items()} == {"x": 1.0, "y": 0.0}
    assert card["brier"] == pytest.approx((1 / 16 + 1 / 16 + 9 / 16 + 1 / 4) / 4, abs=1e-6)
    # One bin, as there are few pairs: said 3/4 three times and 1/2 once, and right in 2.5 of 4.
    assert card["ece"] == pytest.approx((3 * 0.75 + 0.5) / 4 - 2.5 / 4, abs=1e-6)
    # Without the temperature it says 9/10 where it says 3/4 with it.
    assert card["uncalibrated_brier"] == pytest.approx((0.01 + 0.01 + 0.81 + 0.25) / 4, abs=1e-6)
    assert card["temperature"] == 2.0 and card["num_ties"] == 1 and card["num_too_long"] == 0
    assert card["num_prompts"] == 4 and card["probes"] == {} and card["probes_passed"] is None


async def test_a_temperature_is_judged_on_pairs_that_it_was_not_fitted_on() -> None:
    # An overconfident model: 100 in log-odds, and right about three pairs of four.
    pairs = [pair(f"{i}", *(("good", "bad") if i % 4 else ("bad", "good"))) for i in range(200)]
    examined = ExaminedScorer(Scorer(lambda text: 50.0 if text == "good" else -50.0), temperature=100 / math.log(3.0))
    elsewhere = await examine(examined, pairs)
    assert elsewhere["brier"] == pytest.approx(3 / 4 * 1 / 16 + 1 / 4 * 9 / 16, abs=1e-6)
    assert elsewhere["ece"] == 0.0 and elsewhere["uncalibrated_ece"] == pytest.approx(0.25, abs=1e-6)
    by_half = await examine(examined, pairs, were_calibrated_on=True)
    assert elsewhere["brier"] < by_half["brier"] < elsewhere["brier"] + 0.02
    assert by_half["accuracy"] == elsewhere["accuracy"] and by_half["temperature"] == elsewhere["temperature"]


async def test_no_conversation_is_scored_twice() -> None:
    scorer = Scorer(len)
    pairs = word_pairs(40)
    await examine(ExaminedScorer(scorer), [*pairs, *pairs[:10]])
    assert len(scorer.asked) == len(set(scorer.asked)) > 80


async def test_other_wordings_are_compared_with_the_first() -> None:
    pairs = word_pairs(12)
    unstable = {"negated": Scorer(lambda text: -len(text)), "the same": Scorer(len)}
    card = await examine(ExaminedScorer(Scorer(len), reworded=unstable, raw_per_score=0.5), pairs, ReportCardConfig())
    differences = [abs(len(get_text(one.chosen)) - len(get_text(one.rejected))) for one in pairs]
    found = card["paraphrase"]
    assert found["applicable"] is True and found["num_pairs"] == 12
    assert found["by_wording"]["the same"] == {"share_changed": 0.0, "mean_abs_delta": 0.0}
    assert found["by_wording"]["negated"]["mean_abs_delta"] == pytest.approx(sum(differences) / 12)
    assert found["share_changed"] == found["by_wording"]["negated"]["share_changed"]
    assert found["share_changed"] == sum(difference > 0 for difference in differences) / 12


async def test_what_does_not_fit_is_counted_and_left_out() -> None:
    pairs = [pair(str(i), "a " * i, "b") for i in range(1, 21)]
    examined = ExaminedScorer(Scorer(len), fits_one=lambda conversation: len(get_text(conversation[-1])) <= 20)
    card = await examine(examined, pairs)
    assert card["accuracy"]["num_pairs"] == 10 and card["num_too_long"] == 10
    assert card["probes"]["repeated"]["num"] < card["probes"]["empty"]["num"] == 10
    with pytest.raises(InvalidRequest, match="of 20, 0 are ties and 20 are longer than the model's context"):
        await examine(ExaminedScorer(Scorer(len), fits_one=lambda conversation: False), pairs)


async def test_where_nobody_says_how_much_fits_it_is_what_was_scored_before(tiny_model_dir: Path) -> None:
    class SilentService:
        """A service that does not know its models' context, and makes clients that are not asked."""

        async def get_server_capabilities_async(self) -> SimpleNamespace:
            return SimpleNamespace(supported_models=[])

        def create_sampling_client(self, **_: Any) -> None:
            return None

    spec = ScorerSpec("mint://a/b/c", str(tiny_model_dir), "qwen3_disable_thinking", SequenceLogprob(), RewardScale())
    service: Any = SilentService()
    one = pair("Which?", "red and green and blue", "mud")
    examined = await ExaminedScorer.of(spec, service, known_to_fit=[one])
    assert examined.fits(one.chosen_conversation, one.rejected_conversation)
    assert not examined.fits([*one.chosen_conversation[:-1], Message(role="assistant", content="red and " * 30)])
    assert (await ExaminedScorer.of(spec, service)).fits([*one.prompt, Message(role="assistant", content="a " * 9999)])


async def test_a_score_that_is_no_number_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the scorer gives nan to the reply 'red"):
        await examine(ExaminedScorer(Scorer(lambda text: math.nan if text.startswith("red") else 0.0)), word_pairs(40))


@settings(max_examples=25)
@given(num_pairs=st.integers(1, 40), seed=st.integers(0, 5), slope=st.sampled_from([-1.0, 0.03, 2.0]))
async def test_order_and_swapping(num_pairs: int, seed: int, slope: float) -> None:
    pairs = word_pairs(num_pairs, seed)
    examined = ExaminedScorer(Scorer(lambda text: slope * (text.count("red") - text.count("blue"))))
    card = await examine(examined, pairs)
    shuffled = random.Random(seed).sample(pairs, len(pairs))
    assert await examine(examined, shuffled) == card
    swapped = await examine(examined, [one.swapped() for one in pairs], ReportCardConfig(max_probe_prompts=0))
    for key in ("accuracy", "length_only_accuracy"):
        assert swapped[key]["value"] == pytest.approx(1 - card[key]["value"], abs=2e-6)
        assert swapped[key]["low"] == pytest.approx(1 - card[key]["high"], abs=2e-6)
    assert swapped["correlations"] == card["correlations"]
    assert 0.0 <= card["brier"] <= 1.0 and 0.0 <= card["ece"] <= 1.0
    assert json.loads(json.dumps(card)) == card


@pytest.mark.parametrize("readout", [Verdict(), VerdictAndLikelihood(likelihood_coef=0.5)])
def test_a_question_has_other_wordings(readout: Verdict) -> None:
    others = reworded(readout)
    assert len(others) == 3 and readout.judge_question not in others
    for question, other in others.items():
        assert isinstance(other, type(readout)) and other.judge_question == question
        assert other.to_json() == {**readout.to_json(), "judge_question": question}
    own = reworded(Verdict(judge_question="Is it safe?"))
    assert len(own) == 3 and all("Is it safe?" in question for question in own)
    assert list(reworded(readout, ["Good?", readout.judge_question])) == ["Good?"]
    assert reworded(SequenceLogprob()) == {}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_probe_prompts": -1}, "report_card.max_probe_prompts=-1: must be at least 0"),
        ({"min_probe_share": 0.0}, "report_card.min_probe_share=0.0: must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        ReportCardConfig(**setting)


HELD_OUT = [pair(f"Other {i}", f"red {i} sky", f"mud {i}") for i in range(12)]


@pytest.fixture
def make_config(tiny_model_dir: Path, tmp_path: Path) -> Callable[..., Config]:
    """Settings of a run of two steps, with 12 pairs held out."""

    def make(folder: str = "run", **changes: Any) -> Config:
        data = ListPreferenceDatasetBuilder(
            pairs=word_pairs(8),
            held_out_pairs=HELD_OUT,
            examples=PairExampleConfig(batch_size=4),
        )
        settings: dict[str, Any] = {
            "log_path": str(tmp_path / folder), "model_name": str(tiny_model_dir), "dataset_builder": data,
            "renderer_name": "qwen3_disable_thinking", "lora_rank": 4, "learning_rate": 5e-3, "max_steps": 2,
        }  # fmt: skip
        return Config(**{**settings, **changes})

    return make


async def test_a_run_ends_with_its_card(service: mint.ServiceClient, make_config: Callable[..., Config]) -> None:
    config = make_config()
    result = await main(config, service)
    card = read_report_card(config.log_path)
    assert card is not None and card["step"] == 2
    assert card["accuracy"]["value"] == pytest.approx(result.metrics["test/pair_accuracy"], abs=1e-6)
    assert card["accuracy"]["low"] == pytest.approx(result.metrics["test/pair_accuracy_low"], abs=1e-6)
    assert card["accuracy"]["num_pairs"] == 12 and card["length_only_accuracy"]["value"] == 1.0
    assert set(card["probes"]) == set(PROBES)
    assert card["paraphrase"]["applicable"] is True and len(card["paraphrase"]["by_wording"]) == 3
    assert card["paraphrase"]["mean_abs_delta"] > 0, "a random model answers other questions otherwise"
    # The scores of the card are the margins that were evaluated, in log-odds.
    assert sum(one["num_pairs"] for one in card["reliability"]) == 12
    scorer = result.scorer.build(service)
    chosen = await scorer.score_many([one.chosen_conversation for one in HELD_OUT])
    rejected = await scorer.score_many([one.rejected_conversation for one in HELD_OUT])
    margins = [(c - r) * result.scorer.scale.std for c, r in zip(chosen, rejected, strict=True)]
    assert sum(margins) / 12 == pytest.approx(result.metrics["test/mean_margin"], abs=1e-4)
    assert card["uncalibrated_brier"] == pytest.approx(brier_score(margins), abs=1e-5)
    assert card["temperature"] == pytest.approx(result.scorer.temperature, abs=1e-6)


async def test_the_card_changes_nothing_else(
    service: mint.ServiceClient, make_config: Callable[..., Config], mint_home: Path
) -> None:
    with_card = await main(make_config("with"), service)
    without = await main(make_config("without", report_card=ReportCardConfig(is_on=False)), service)
    assert with_card.metrics == without.metrics and with_card.scorer.scale == without.scorer.scale
    assert not Path(make_config("without").log_path, CARD_FILE).exists()


async def test_a_finished_run_without_a_card_makes_the_same_one(
    service: mint.ServiceClient, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    file = Path(config.log_path, CARD_FILE)

    async def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(report_card, "examine", killed)
        with pytest.raises(KeyboardInterrupt):
            await main(config, service)
    assert not file.exists()
    await main(config, service)
    after_kill = file.read_bytes()
    undisturbed = make_config("undisturbed")
    await main(undisturbed, service)
    assert Path(undisturbed.log_path, CARD_FILE).read_bytes() == after_kill
    file.write_bytes(after_kill[:100])
    await main(config, service)
    assert file.read_bytes() == after_kill, "a damaged card is made again"
    written = file.stat().st_mtime_ns
    await main(config, service)
    assert file.stat().st_mtime_ns == written, "a card of this step is not made again"


async def test_a_run_that_goes_on_gets_a_new_card(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    config = make_config(max_steps=1)
    await main(config, service)
    first = read_report_card(config.log_path)
    await main(make_config(max_steps=2), service)
    second = read_report_card(config.log_path)
    assert first is not None and second is not None
    assert (first["step"], second["step"]) == (1, 2) and first["brier"] != second["brier"]


async def test_without_held_out_pairs_there_is_no_card(
    service: mint.ServiceClient, make_config: Callable[..., Config]
) -> None:
    examples = PairExampleConfig(batch_size=4, held_out_share=0.0)
    data = ListPreferenceDatasetBuilder(pairs=word_pairs(8), examples=examples)
    config = make_config(dataset_builder=data, max_steps=1)
    await main(config, service)
    assert read_report_card(config.log_path) is None


@pytest.mark.parametrize("content", ["{", "[]", '{"step": 1}'])
def test_a_damaged_card_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / CARD_FILE).write_text(content)
    with pytest.raises(InvalidRequest, match="report_card.json: not .* remove it, and it is made again"):
        read_report_card(tmp_path)


async def test_a_folder_that_cannot_be_written_is_a_warning(
    service: mint.ServiceClient,
    make_config: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = make_config(max_steps=1)
    finished = await main(config, service)
    Path(config.log_path, CARD_FILE).unlink()

    def refuse(folder: Path) -> None:
        raise mint.errors.StorageError(f"{folder} cannot be written")

    monkeypatch.setattr(report_card, "check_writable", refuse)
    assert await main(config, service) == finished
    assert "no report card is made" in caplog.text and not Path(config.log_path, CARD_FILE).exists()
