"""`mint report-card LOG_PATH`: the report card of a finished preference stage, on its own held-out pairs or others."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mint.errors import InvalidRequest
from recipe.terminal import Palette

if TYPE_CHECKING:
    import mint
    from recipe.preference.types import PreferencePair

_STAGE_FOLDER = "preference"


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint report-card`; see `mint.cli`."""
    parser.description = "how good a preference model is: accuracy, calibration, biases, probes"
    parser.epilog = "docs/report_card.md says what each number means and what to do when it is bad."
    parser.add_argument("log_path", metavar="LOG_PATH", help="folder of a finished preference stage, or of a pipeline")
    parser.add_argument("--pairs", metavar="FILE", help="examine on these pairs (columns prompt, chosen, rejected)")
    parser.add_argument("--rewardbench", metavar="FILE", help="accuracy on a file that has a column subset as well")
    parser.add_argument("--max-rows", type=_positive, metavar="N", help="of these files, read the first N rows")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def run(options: argparse.Namespace) -> None:
    """Print the card. InvalidRequest where LOG_PATH is no finished preference stage, or a file holds no pairs."""
    from recipe.interruption import run_until_interrupted

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # text of a model on a terminal that knows less than UTF-8
    run_until_interrupted(_run(options))


async def _run(options: argparse.Namespace) -> None:
    from recipe.preference.report_card_text import card_text, rewardbench_text

    folder = stage_folder(options.log_path)
    results: dict[str, Any] = {}
    if options.pairs is not None or options.rewardbench is None:
        results["report_card"] = await _card(folder, options.pairs, options.max_rows)
    if options.rewardbench is not None:
        results["rewardbench"] = await _rewardbench(folder, options.rewardbench, options.max_rows)
    if options.json:
        document = results if len(results) > 1 else next(iter(results.values()))
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    palette = Palette.of(sys.stdout, os.environ)
    texts: list[str] = []
    if "report_card" in results:
        pairs = options.pairs if options.pairs is not None else "its held-out pairs"
        texts.append(card_text(results["report_card"], f"Report card of {folder} on {pairs}", palette))
    if "rewardbench" in results:
        title = f"RewardBench of {folder} on {options.rewardbench}"
        texts.append(rewardbench_text(results["rewardbench"], title, palette))
    print("\n\n".join(texts))


def stage_folder(log_path: str) -> Path:
    """LOG_PATH itself, or the stage in it. InvalidRequest where neither has checkpoints."""
    from recipe.checkpoint_utils import CHECKPOINTS_FILE

    folder = Path(log_path).expanduser()
    for candidate in (folder / _STAGE_FOLDER, folder):
        if (candidate / CHECKPOINTS_FILE).is_file():
            return candidate
    raise InvalidRequest(
        f"{log_path}: no {CHECKPOINTS_FILE} here or in {_STAGE_FOLDER}/ below it; give the log_path of a preference "
        "stage, or of a pipeline that has one"
    )


async def _card(folder: Path, pairs_file: str | None, max_rows: int | None) -> dict[str, Any]:
    """The card that the stage wrote, or one made now: on `pairs_file`, else on the pairs that the stage held out."""
    from recipe.preference.data import read_pairs
    from recipe.preference.examined_scorer import ExaminedScorer
    from recipe.preference.report_card import examine, read_report_card, write_report_card

    spec, config, step = _finished(folder)
    if pairs_file is not None:
        examined = await ExaminedScorer.of(spec, _service(), config.judge_wordings)
        return await examine(examined, read_pairs(pairs_file, max_rows=max_rows), config)
    card = read_report_card(folder)
    if card is None or card.get("step") != step:
        pairs = _held_out_pairs(folder)
        card = await write_report_card(folder, spec, _service(), pairs, step=step, config=config)
    if card is None:
        raise InvalidRequest(f"{folder} has no report card, and no held-out pairs to make one from; give --pairs FILE")
    return card


async def _rewardbench(folder: Path, path: str, max_rows: int | None) -> dict[str, Any]:
    from recipe.preference.examined_scorer import ExaminedScorer
    from recipe.preference.report_card import examine_rewardbench
    from recipe.preference.rewardbench import read_rewardbench

    pairs = read_rewardbench(path, max_rows=max_rows)
    spec, _, _ = _finished(folder)
    return await examine_rewardbench(await ExaminedScorer.of(spec, _service()), pairs)


def _finished(folder: Path) -> tuple[Any, Any, int]:
    """The scorer's spec, the run's settings for cards and the last step of a finished stage."""
    from recipe.checkpoint_utils import FINAL_NAME, get_last_checkpoint
    from recipe.preference.scorer import ScorerSpec

    record = get_last_checkpoint(folder, "sampler_path")
    if record is None or not record.is_final:
        raise InvalidRequest(
            f"{folder}: the stage is not finished (no checkpoint {FINAL_NAME!r}); start it again to finish it"
        )
    return ScorerSpec.from_record(record), _card_config(folder), record.step


def _card_config(folder: Path) -> Any:
    """The run's report_card settings, from its config.json alone: its pairs may be of a class that is not here."""
    from recipe.config_record import config_from_json
    from recipe.preference.report_card import ReportCardConfig
    from recipe.run_log import CONFIG_FILE

    prefix = "report_card."
    try:
        recorded = dict(json.loads((folder / CONFIG_FILE).read_bytes())["values"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{folder / CONFIG_FILE}: not the config of a run ({error!r})") from error
    values = {name.removeprefix(prefix): value for name, value in recorded.items() if name.startswith(prefix)}
    config_class = {"$import": f"{ReportCardConfig.__module__}:{ReportCardConfig.__qualname__}"}
    return config_from_json({"config_class": config_class, "values": values}, ReportCardConfig)


def _held_out_pairs(folder: Path) -> list[PreferencePair]:
    from recipe.config_record import load_config
    from recipe.preference.train import Config

    try:
        return list(load_config(folder, Config).dataset_builder().held_out)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"the held-out pairs of {folder} cannot be made again from its config.json ({error}); start the run again, "
            "which writes the card, or give --pairs FILE"
        ) from error


def _service() -> mint.ServiceClient:
    import mint

    return mint.ServiceClient()
