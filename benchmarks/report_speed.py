"""How long report.html takes to write, to open and to answer, for a run of 200 steps and 10,000 rollouts.

    python -m benchmarks.report_speed [--steps 200] [--groups 10] [--members 5] [--reply-tokens 60] [--opens 5]

Prints one JSON line. The run is made up (`benchmarks.generated_run`); the browser is the machine's Chromium, headless,
each time with a new profile. `interactive_seconds` goes from the navigation to the page having drawn everything and
listening (`started_seconds`: the file is parsed, `unpacked_seconds`: index and overview are unpacked), and
`main_thread_cpu_seconds` is what the page's own thread computes until then, whatever else the machine does; the other
times are those of one action each, until the next frame after the page shows its result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from benchmarks.generated_rollouts import RunShape
from benchmarks.generated_run import write_run
from recipe.report import write_report

_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_NEXT_FRAME = "await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));"
_STATUS = "document.getElementById('list-status').textContent"


def main() -> None:
    """Measure what the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 200), ("groups", 10), ("members", 5), ("reply-tokens", 60), ("opens", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    shape = RunShape(options.steps, options.groups, options.members, options.reply_tokens)
    executable = next((path for name in _CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if executable is None:
        raise SystemExit(f"no browser: none of {', '.join(_CHROMIUM_NAMES)} is installed")
    with tempfile.TemporaryDirectory(prefix="report-speed-") as folder, sync_playwright() as playwright:
        run = Path(folder) / "run"
        run.mkdir()
        write_run(run, shape)
        written = _measure_writing(run)
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        opens = [_measure_page(browser, run / "report.html") for _ in range(options.opens)]
        chromium = browser.version
        browser.close()
    medians = {name: round(statistics.median(one[name] for one in opens), 3) for name in opens[0]}
    slowest = round(max(one["interactive_seconds"] for one in opens), 3)
    print(
        json.dumps(
            {
                "steps": shape.num_steps,
                "rollouts": shape.num_steps * shape.num_groups * shape.group_size,
                "reply_tokens": shape.reply_tokens,
                **written,
                **medians,
                "slowest_interactive_seconds": slowest,
                "opens": options.opens,
                "chromium": chromium,
                "cores": os.cpu_count(),
                "machine": platform.machine(),
            }
        )
    )


def _measure_writing(run: Path) -> dict[str, Any]:
    started, cpu_started = time.perf_counter(), time.process_time()
    path = write_report(run)
    rollout_files = (run / "rl" / "rollouts").glob("*.jsonl")
    return {
        "write_seconds": round(time.perf_counter() - started, 3),
        "write_cpu_seconds": round(time.process_time() - cpu_started, 3),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "rollout_files_mb": round(sum(file.stat().st_size for file in rollout_files) / 1e6, 1),
        "report_mb": round(path.stat().st_size / 1e6, 1),
    }


def _measure_page(browser: Browser, path: Path) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-state=ready]", timeout=120_000)

    metrics = {one["name"]: one["value"] for one in devtools.send("Performance.getMetrics")["metrics"]}

    def seconds_of(action: str, is_done: str) -> float:
        script = f"""async () => {{
            const started = performance.now();
            {action};
            while (!({is_done})) {_NEXT_FRAME}
            {_NEXT_FRAME}
            return (performance.now() - started) / 1000;
        }}"""
        return float(page.evaluate(script))

    def fill(selector: str, text: str) -> str:
        return (
            f"const input = document.querySelector('{selector}'); const before = {_STATUS}; input.value = '{text}';"
            " input.dispatchEvent(new Event('input'))"
        )

    measured = {
        "main_thread_cpu_seconds": float(metrics["TaskDuration"]),
        **{
            f"{mark}_seconds": float(page.evaluate(f"performance.getEntriesByName('{mark}')[0].startTime")) / 1000
            for mark in ("started", "unpacked", "interactive")
        },
        "filter_seconds": seconds_of(fill("[data-filter=minReward]", "1"), f"{_STATUS} !== before"),
        "clear_seconds": seconds_of("document.getElementById('clear-filters').click()", "true"),
        "search_seconds": seconds_of(
            fill("#rollout-search", "café"), f"{_STATUS} !== before && !{_STATUS}.includes('searching')"
        ),
        "colour_seconds": seconds_of(
            "document.querySelector('button[data-value=logprob]').click()",
            "document.querySelector('button[data-value=logprob][aria-pressed=true]')",
        ),
    }
    context.close()
    return measured


if __name__ == "__main__":
    main()
