"""The findings of a data audit as checks with their remedies, for a terminal.

A failure is what training refuses; a note is what makes the result worse or the measurements wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from recipe.check_result import Check, Outcome
from recipe.preference.clustered_share import ShareEstimate
from recipe.preference.data_audit import DataAudit, PromptOverlap, SourceAudit

_NUM_EXAMPLES = 5
# Notes begin here; below, the finding is a property of any data of its size.
_NOTED_SKEW = 0.05
_NOTED_NOISE = 0.05


def facts(audit: DataAudit) -> dict[str, str]:
    """What the file is, in words."""
    found = {
        "rows": f"{audit.num_rows:,}",
        "pairs": f"{audit.num_pairs:,}" + (f", {audit.num_ties:,} of them ties" if audit.num_ties else ""),
        "prompts": f"{audit.num_prompts:,}",
    }
    if audit.by_source:
        found["sources"] = f"{len(audit.by_source):,}"
    if audit.lengths:
        lengths = audit.lengths
        found["length"] = (
            f"median {lengths.median_chosen:,.0f} characters chosen, {lengths.median_rejected:,.0f} rejected"
        )
    if audit.tokens:
        tokens = audit.tokens
        found["tokens"] = (
            f"median {tokens.quantiles['0.5']:,.0f}, 95 % up to {tokens.quantiles['0.95']:,.0f}, longest "
            f"{tokens.longest:,} ({tokens.model}, {tokens.renderer}, {tokens.readout})"
        )
    return found


def checks(audit: DataAudit) -> list[Check]:
    """Every finding, in the order in which to act on them."""
    return [*_row_checks(audit), *_repetition_checks(audit), *_overlap_checks(audit), *_length_checks(audit),
            *_noise_checks(audit)]  # fmt: skip


def source_lines(audit: DataAudit, max_sources: int = 12) -> list[str]:
    """A table with a line for each source, the largest first."""
    if not audit.by_source:
        return []
    by_size = sorted(audit.by_source.items(), key=lambda item: (-item[1].num_pairs, item[0]))
    columns: dict[str, Callable[[SourceAudit], str]] = {
        "pairs": lambda source: f"{source.num_pairs:,}",
        "prompts": lambda source: f"{source.num_prompts:,}",
        "ties": lambda source: f"{source.num_ties:,}",
        "not clean": lambda source: f"{source.num_not_clean:,}",
        "too long": lambda source: "-" if source.num_too_long is None else f"{source.num_too_long:,}",
        "longer chosen": lambda source: _share(source.longer_is_chosen),
    }
    width = max(len("source"), *(len(name) for name, _ in by_size[:max_sources]))
    lines = ["  " + "  ".join([f"{'source':{width}}", *(f"{title:>{max(9, len(title))}}" for title in columns)])]
    for name, source in by_size[:max_sources]:
        cells = (f"{show(source):>{max(9, len(title))}}" for title, show in columns.items())
        lines.append("  " + "  ".join([f"{name:{width}}", *cells]))
    if len(by_size) > max_sources:
        lines.append(f"  and {len(by_size) - max_sources} more, in the JSON")
    return lines


def _row_checks(audit: DataAudit) -> Iterator[Check]:
    yield _check(
        "rows", len(audit.broken_rows),
        f"no pair in {_of(audit.broken_rows, audit.num_rows, 'rows')}, the first: {(audit.broken_rows or [''])[0]}",
        "every row can be read", "repair or remove them: training stops at the first", fails=True,
    )  # fmt: skip
    yield _check(
        "equal replies", len(audit.equal_lines),
        f"in {_of(audit.equal_lines, audit.num_rows, 'rows')} ({_lines(audit.equal_lines)})", "none",
        "remove them: training stops at the first; --write-clean does", fails=True,
    )  # fmt: skip
    yield _check(
        "nearly equal replies", len(audit.near_equal_lines),
        f"in {_of(audit.near_equal_lines, audit.num_pairs, 'pairs')} ({_lines(audit.near_equal_lines)})", "none",
        "read some: a small difference is either the very point of the pair or a preference without a reason",
    )  # fmt: skip


def _repetition_checks(audit: DataAudit) -> Iterator[Check]:
    for name, groups, remedy in (
        ("duplicates", audit.duplicates, "they count more than others; --write-clean keeps the first"),
        (
            "near duplicates", audit.near_duplicates,
            "where they are copies and not variants, --drop-near-duplicates keeps them out of what is written",
        ),
    ):  # fmt: skip
        later = [line for group in groups for line in group[1:]]
        yield _check(
            name, len(later), f"{_of(later, audit.num_pairs, 'pairs')} repeat an earlier one ({_groups(groups)})",
            "none", remedy,
        )  # fmt: skip
    involved = [line for group in audit.both_orders for line in group]
    yield _check(
        "both orders", len(involved),
        f"{_of(involved, audit.num_pairs, 'pairs')} contradict one of the same replies ({_groups(audit.both_orders)})",
        "none", "--write-clean keeps the majority, and neither where there is none",
    )  # fmt: skip
    involved = [line for group in audit.cycles for line in group]
    yield _check(
        "cycles", len(involved),
        f"{_of(involved, audit.num_pairs, 'pairs')} lie on cycles of preferences, a over b over c over a "
        f"({_groups(audit.cycles)})",
        "none", "no reward can satisfy all pairs of a cycle; --write-clean leaves them out",
    )  # fmt: skip


def _overlap_checks(audit: DataAudit) -> Iterator[Check]:
    yield _check(
        "prompts", audit.num_near_prompts,
        f"{audit.num_near_prompts:,} of {audit.num_prompts:,} prompts nearly equal an earlier one",
        "no two are nearly equal",
        "a split by prompt may put them on two sides; --write-clean keeps them on one",
    )  # fmt: skip
    for name, overlap in audit.overlaps.items():
        yield _overlap_check(name, overlap)


def _overlap_check(name: str, overlap: PromptOverlap) -> Check:
    detail = (
        f"of {overlap.num_prompts:,} prompts in {overlap.path}, {overlap.num_equal:,} are in this file as they are, "
        f"{overlap.num_near - overlap.num_equal:,} nearly so ({_lines(overlap.lines)})"
    )
    if name == "held-out":
        remedy = "the test would measure memory; --write-clean leaves these prompts out of the training file"
    else:
        remedy = (
            "rewards on prompts that the preference model was trained on look better than they are: give RL prompts "
            "of its own, or read its rewards there with care"
        )
    return _check(
        f"overlap with {name} prompts", overlap.num_near, detail, f"none of {overlap.num_prompts:,} prompts",
        remedy, fails=name == "held-out" and overlap.num_equal > 0,
    )  # fmt: skip


def _length_checks(audit: DataAudit) -> Iterator[Check]:
    tokens, lengths = audit.tokens, audit.lengths
    if tokens:
        yield _check(
            "too long", len(tokens.too_long_lines),
            f"{_of(tokens.too_long_lines, audit.num_pairs, 'pairs')} have a reply of more than {tokens.limit:,} tokens "
            f"({_lines(tokens.too_long_lines)})",
            f"all pairs fit {tokens.limit:,} tokens",
            "raise max_length, or let training leave them out with on_too_long=drop; nothing is ever cut", fails=True,
        )  # fmt: skip
    if lengths:
        low, high = _interval(lengths.longer_is_chosen)
        detail = (
            f"the longer reply is chosen in {_estimate(lengths.longer_is_chosen)} of pairs; chosen less rejected is "
            f"{lengths.difference['0.5']:+,.0f} characters in the median, {lengths.difference['0.05']:+,.0f} to "
            f"{lengths.difference['0.95']:+,.0f} in nine of ten"
        )
        yield _check(
            "length", low > 0.5 + _NOTED_SKEW or high < 0.5 - _NOTED_SKEW, detail, detail,
            "a preference model can score that by length alone: look at its accuracy on length-balanced pairs too, or "
            f"train on such pairs ({lengths.num_balanced:,} of these; --write-clean writes them)",
        )  # fmt: skip


def _noise_checks(audit: DataAudit) -> Iterator[Check]:
    labels, model = audit.repeated_labels, audit.word_model
    if labels.disagreement is not None and labels.noise is not None and labels.low is not None:
        detail = (
            f"{labels.num_reply_pairs:,} pairs of replies have several labels, which differ in "
            f"{labels.disagreement:.1%} of comparisons: about {labels.noise:.1%} of labels are wrong "
            f"({labels.low:.1%} to {labels.high:.1%}), if they err independently"
        )
        yield _check(
            "repeated labels", labels.low > _NOTED_NOISE, detail, detail,
            "expect no held-out accuracy above what such labels allow; label smoothing of that size fits them",
        )  # fmt: skip
    if model:
        detail = (
            f"a model of words predicts {_estimate(model.accuracy)} of labels; of the tenth where it is surest, "
            f"{_estimate(model.confident_error)} contradict it; were labels wrong at random, whatever the pair, it "
            f"would be no more of them than that; least likely: {_lines([line for line, _ in audit.suspicious_lines])}"
        )
        yield _check(
            "surprising labels", _interval(model.confident_error)[0] > _NOTED_NOISE, detail, detail,
            "read the pairs on those lines: they are wrong, or right for reasons that words do not show",
        )  # fmt: skip


def _check(name: str, is_found: object, found: str, otherwise: str, remedy: str, *, fails: bool = False) -> Check:
    if not is_found:
        return Check(name, Outcome.OK, otherwise)
    return Check(name, Outcome.FAIL if fails else Outcome.NOTE, found, remedy)


def _share(share: ShareEstimate) -> str:
    return "-" if share.value is None else f"{share.value:.1%}"


def _estimate(share: ShareEstimate) -> str:
    low, high = _interval(share)
    return f"{_share(share)} ({low:.1%} to {high:.1%})"


def _interval(share: ShareEstimate) -> tuple[float, float]:
    assert share.low is not None and share.high is not None, "an estimate that is reported is of some pairs"
    return share.low, share.high


def _of(found: Sequence[object], num_all: int, what: str) -> str:
    return f"{len(found):,} of {num_all:,} {what}"


def _lines(lines: Sequence[int]) -> str:
    if not lines:
        return "none"
    shown = ", ".join(map(str, lines[:_NUM_EXAMPLES]))
    return f"{'line' if len(lines) == 1 else 'lines'} {shown}{', …' if len(lines) > _NUM_EXAMPLES else ''}"


def _groups(groups: Sequence[Sequence[int]]) -> str:
    shown = "; ".join(", ".join(map(str, group[:_NUM_EXAMPLES])) for group in groups[:3])
    return f"lines {shown}{'; …' if len(groups) > 3 else ''}"
