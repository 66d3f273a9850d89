"""A report card for a terminal: its numbers in short tables, then what stands out. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recipe.terminal import Palette

# From here on a number is remarked upon; docs/report_card.md gives the reasons.
HIGH_CALIBRATION_ERROR = 0.1
HIGH_CORRELATION = 0.5
HIGH_SHARE_CHANGED = 0.1

_BAR_WIDTH = 20
_NAME_WIDTH = 25
_MAX_SOURCES = 10
Card = Mapping[str, Any]


def card_text(card: Card, title: str, palette: Palette) -> str:
    """All of the card, as lines."""
    lines = [palette.paint(title, "bold")]
    lines += ["", *_accuracies(card), "", *_reliability(card), "", *_correlations(card)]
    lines += ["", *_paraphrase(card), "", *_probes(card, palette)]
    remarks = findings(card)
    lines += ["", palette.paint("What stands out" if remarks else "Nothing stands out.", "bold")]
    lines += [palette.paint(f"  {remark}", "yellow") for remark in remarks]
    return "\n".join(lines)


def rewardbench_text(result: Card, title: str, palette: Palette) -> str:
    """Accuracy by subset, then the averages of RewardBench's sections."""
    lines = [palette.paint(title, "bold")]
    lines += [_share(subset, accuracy) for subset, accuracy in result["by_subset"].items()]
    if result["num_too_long"]:
        lines.append(f"  left out: {result['num_too_long']} too long")
    lines += ["", "  average of a section"]
    lines += [f"    {section:<26}{value:6.3f}" for section, value in result["sections"].items()]
    if not result["sections"]:
        lines.append("    the file has no subset of RewardBench's sections")
    return "\n".join(lines)


def findings(card: Card) -> list[str]:
    """What a reader of the card should not miss, most serious first; [] where all is well."""
    accuracy, beats_length, balanced = card["accuracy"], card["beats_length_only"], card["length_balanced"]
    found: list[str] = []
    if accuracy["low"] <= 0.5:
        found.append("held-out accuracy may be chance: its interval reaches 0.5")
    if not beats_length["num_pairs"] or beats_length["low"] <= 0.5:
        found.append("it may be no better than a rule about length: see the pairs where the two disagree")
    if balanced["num_pairs"] and balanced["low"] <= 0.5 < accuracy["low"]:
        found.append("where length says nothing it may be guessing: the interval on length-balanced pairs reaches 0.5")
    failed = [name for name, probe in card["probes"].items() if not probe["passed"]]
    if failed:
        found.append(f"failed probes: {', '.join(failed)}. A policy will find such replies")
    weak = [
        f"{name} {probe['share_passed']:.2f}"
        for name, probe in card["probes"].items()
        if probe["passed"] and probe["share_passed"] < card["min_probe_share"]
    ]
    if weak:
        found.append(f"weak probes, below {card['min_probe_share']:.0%} if not surely so: {', '.join(weak)}")
    if card["ece"] > HIGH_CALIBRATION_ERROR:
        found.append(f"its probabilities are off by {card['ece']:.2f} on average: calibrate before relying on them")
    following = [
        name
        for name, correlation in card["correlations"].items()
        if correlation is not None and abs(correlation) > HIGH_CORRELATION
    ]
    if following:
        found.append(f"the score follows {', '.join(following)}: see whether good replies really do")
    if card["paraphrase"].get("share_changed", 0.0) > HIGH_SHARE_CHANGED:
        share = card["paraphrase"]["share_changed"]
        found.append(f"another wording of the judge's question turns {share:.0%} of the pairs round")
    return found


def _accuracies(card: Card) -> list[str]:
    lines = [
        _share("held-out accuracy", card["accuracy"], f"of {card['num_prompts']} prompts"),
        _share("length alone", card["length_only_accuracy"]),
        _share("where the two disagree", card["beats_length_only"]),
        _share("on length-balanced pairs", card["length_balanced"]),
    ]
    sources = sorted(card["by_source"].items(), key=lambda item: -item[1]["num_pairs"])
    lines += [_share(f"from {source}", accuracy) for source, accuracy in sources[:_MAX_SOURCES]]
    if len(sources) > _MAX_SOURCES:
        lines.append(f"  and {len(sources) - _MAX_SOURCES} more sources (--json has them all)")
    left_out = [
        f"{card[key]} {name}" for key, name in (("num_ties", "ties"), ("num_too_long", "too long")) if card[key]
    ]
    return lines + ([f"  left out: {', '.join(left_out)}"] if left_out else [])


def _share(name: str, estimate: Card, note: str = "") -> str:
    head = f"  {_cut(name, _NAME_WIDTH):<{_NAME_WIDTH + 1}}"
    if not estimate["num_pairs"]:
        return f"{head}     -  no pairs"
    interval = f"({estimate['low']:.3f} to {estimate['high']:.3f})"
    return f"{head}{estimate['value']:6.3f}  {interval}  {estimate['num_pairs']} pairs {note}".rstrip()


def _reliability(card: Card) -> list[str]:
    summary = f"  Brier score {card['brier']:.3f}, calibration error {card['ece']:.3f}"
    lines = [f"{summary}, temperature {card['temperature']:.2f}", "    says   right"]
    return lines + [
        f"    {one['mean_predicted']:.3f}  {one['share_right']:.3f}  {_bar(one)}  {one['num_pairs']} pairs"
        for one in card["reliability"]
    ]


def _bar(one: Card) -> str:
    """From one half to one: = as far as it is right, | where it says it is."""
    filled = max(0, round((one["share_right"] - 0.5) * 2 * _BAR_WIDTH))
    bar = list("=" * filled + "." * (_BAR_WIDTH - filled))
    bar[min(round((one["mean_predicted"] - 0.5) * 2 * _BAR_WIDTH), _BAR_WIDTH - 1)] = "|"
    return "".join(bar)


def _correlations(card: Card) -> list[str]:
    lines = ["  correlation of the score with   rank  linear"]
    for name, rank in card["correlations"].items():
        label = name.replace("_", " ")
        lines.append(f"    {label:<26}{_signed(rank)}  {_signed(card['pearson_correlations'][name])}")
    return lines


def _paraphrase(card: Card) -> list[str]:
    found = card["paraphrase"]
    if not found["applicable"]:
        return [f"  other wordings of the judge's question: {found['reason']}"]
    lines = [f"  other wordings of the judge's question, {found['num_pairs']} pairs   turned  mean |change|"]
    return lines + [
        f"    {_cut(question, 50):<50}{one['share_changed']:8.3f}{one['mean_abs_delta']:9.3f}"
        for question, one in found["by_wording"].items()
    ]


def _probes(card: Card, palette: Palette) -> list[str]:
    if not card["probes"]:
        return ["  probes: none"]
    lines = [f"  probes: the chosen reply scores higher, in at least {card['min_probe_share']:.0%}"]
    for name, probe in card["probes"].items():
        mark = palette.paint("  ok", "green") if probe["passed"] else palette.paint("FAIL", "bold red")
        interval = f"({probe['low']:.3f} to {probe['high']:.3f})"
        lines.append(
            f"    {mark}  {name.replace('_', ' '):<18}{probe['share_passed']:6.3f}  {interval}  "
            f"margin {probe['mean_margin']:+.2f}"
        )
    return lines


def _signed(value: float | None) -> str:
    return "     -" if value is None else f"{value:+6.2f}"


def _cut(text: str, num_characters: int) -> str:
    return text if len(text) <= num_characters else text[: num_characters - 1] + "…"


def one_line(card: Card) -> str:
    """The card in a line, for the console of a run."""
    accuracy: Sequence[float] = [card["accuracy"][key] for key in ("value", "low", "high")]
    failed = [name for name, probe in card["probes"].items() if not probe["passed"]]
    probes = "no probes" if not card["probes"] else f"failed probes: {', '.join(failed)}" if failed else "probes passed"
    return (
        f"report card: accuracy {accuracy[0]:.3f} ({accuracy[1]:.3f} to {accuracy[2]:.3f}), length alone "
        f"{card['length_only_accuracy']['value']:.3f}, {probes}"
    )
