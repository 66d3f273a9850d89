"""From a run's folder to `report.html`: collect, pack, embed, write.

The page is a pure function of the files in the folder: no time of day, no machine, so that the same run has the same
bytes. It asks for nothing outside itself: its Content-Security-Policy allows its own script and style, by their hashes,
and no connection at all. Data travel as compressed JSON in base64, whose alphabet cannot end a script element, and what
a model wrote reaches the page as text nodes only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import logging
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from mint.atomic_files import write_atomically
from mint.errors import InvalidRequest
from recipe.report.rollout_chunks import Chunk, RolloutIndex, read_chunk, rollout_files, within_budget
from recipe.report.stage_summary import read_pipeline, read_stage, stage_folders
from recipe.report.tolerant_reading import FolderReader, dump

logger = logging.getLogger(__name__)

REPORT_FILE = "report.html"
# Raised when the page's script reads the data in another way.
DATA_VERSION = 1
# Rollout files larger than this together are thinned out: a page of some hundred megabytes opens nowhere.
MAX_ROLLOUT_BYTES = 200_000_000

# Inlined in this order into one script element; names are shared between them.
SCRIPTS = (
    "elements.js",
    "packed_data.js",
    "number_text.js",
    "chart_axes.js",
    "line_chart.js",
    "metric_panels.js",
    "curve_section.js",
    "overview_section.js",
    "report_card_section.js",
    "divergence_section.js",
    "rollout_filter.js",
    "rollout_search.js",
    "rollout_list.js",
    "token_view.js",
    "episode_cards.js",
    "rollout_section.js",
    "page_controls.js",
    "start.js",
)
STYLES = ("colours.css", "page.css", "charts.css", "rollouts.css")


def write_report(log_path: str | Path, *, max_rollout_bytes: int = MAX_ROLLOUT_BYTES) -> Path:
    """Write report.html into the folder of a run, one stage's or a pipeline's, and return its path.

    Files that are missing or damaged are named in the report. A file that has the same content already is left alone.
    InvalidRequest where the folder holds no run at all, StorageError where the report cannot be written.
    """
    root = Path(log_path).expanduser()
    if not root.is_dir():
        raise InvalidRequest(f"{root}: no such folder; log_path must be the folder of a run")
    if not stage_folders(root):
        raise InvalidRequest(f"{root} holds no run: neither it nor a folder in it has a metrics.jsonl or config.json")
    page = render(root, max_rollout_bytes=max_rollout_bytes)
    path = root / REPORT_FILE
    if not (path.is_file() and path.read_bytes() == page):
        write_atomically(path, page)
    return path


def bring_up_to_date(log_path: str | Path) -> None:
    """Write the report of a run that has ended, unless one is there that is newer than what the run last wrote.

    Never fails: a run is not worth less for want of a report. What stood in the way is logged as a warning.
    """
    root = Path(log_path).expanduser()
    try:
        if root.is_dir() and stage_folders(root) and not _is_up_to_date(root):
            write_report(root)
    except Exception as error:
        logger.warning(
            "no report of %s (%s: %s); `mint report %s` tries again", root, type(error).__name__, error, root
        )


@contextmanager
def reported(log_path: str | Path) -> Generator[None]:
    """`bring_up_to_date` when the block ends, also where an error ends it: a run that was stopped is the one to read
    about. An interrupted run has no time for it."""
    try:
        yield
    except Exception:
        bring_up_to_date(log_path)
        raise
    bring_up_to_date(log_path)


def render(root: Path, *, max_rollout_bytes: int = MAX_ROLLOUT_BYTES) -> bytes:
    """The page about the run in `root`."""
    reader = FolderReader(root)
    folders = stage_folders(root)
    stages = [read_stage(reader, folder) for folder in folders]
    index, chunks, rollouts = _rollouts(reader, folders, max_rollout_bytes)
    core = {
        "version": DATA_VERSION,
        "title": root.resolve().name,
        **read_pipeline(reader),
        "stages": stages,
        "rollouts": rollouts,
        "problems": reader.problems_as_json(),
    }
    packed = {"core": dump(core)}
    if index.num_episodes:
        packed |= {"index": dump(index.as_json()), "prompts": dump(list(index.prompts))}
    blocks = [_block(name, _pack(content)) for name, content in packed.items()]
    for i_file, (texts, tokens) in enumerate(chunks):
        blocks += [_block(f"texts-{i_file}", texts), _block(f"tokens-{i_file}", tokens)]
    return _page(core["title"], "\n".join(blocks)).encode("utf-8")


def _rollouts(
    reader: FolderReader, folders: list[Path], max_bytes: int
) -> tuple[RolloutIndex, list[tuple[str, str]], dict[str, Any]]:
    """The index, the packed chunks of each file, and how much of all there is the page holds. One file is in memory
    at a time."""
    index = RolloutIndex()
    chunks: list[tuple[str, str]] = []
    files_of = [rollout_files(folder) for folder in folders]
    num_files, budget = sum(map(len, files_of)), max_bytes // max(sum(map(bool, files_of)), 1)
    for i_stage, all_files in enumerate(files_of):
        for file in within_budget(all_files, budget):
            chunk: Chunk = read_chunk(reader, file, i_stage, index)
            chunks.append((_pack(chunk.texts), _pack(chunk.tokens)))
    return index, chunks, {"num_files": num_files, "num_shown_files": len(chunks), "num_episodes": index.num_episodes}


def _is_up_to_date(root: Path) -> bool:
    """Whether there is a report that is newer than what the run last wrote. What others add to the folder of a finished
    stage later does not count: such a folder stays as it is."""
    report = root / REPORT_FILE
    if not report.is_file():
        return False
    last_words = ("metrics.jsonl", "checkpoints.jsonl", "summary.json", "gates.json")
    written = [folder / name for folder in {root, *stage_folders(root)} for name in last_words]
    written_at = [path.stat().st_mtime_ns for path in written if path.is_file()]
    return max(written_at, default=0) <= report.stat().st_mtime_ns


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _block(name: str, packed: str) -> str:
    return f'<script type="text/plain" id="data-{name}">{packed}</script>'


def _page(title: str, blocks: str) -> str:
    folder = files("recipe.report") / "page"

    def joined(names: tuple[str, ...]) -> str:
        return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)

    style, script = joined(STYLES), joined(SCRIPTS)
    assert "</" not in style and "</script" not in script.lower() and "<!--" not in script, "would end its element"
    template = Template((folder / "report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(title),
        style=style,
        style_hash=_csp_hash(style),
        script=script,
        script_hash=_csp_hash(script),
        data=blocks,
    )


def _csp_hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
