"""Pictures of a run's report.html, as docs/images has them.

    python -m benchmarks.report_images LOG_PATH FOLDER

Writes report_overview.png, report_curves.png, report_rollouts.png (dark) and report_phone.png into FOLDER.
"""

from __future__ import annotations

import argparse
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from recipe.report import write_report

_CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Enough for text and charts, and a third of the bytes.
_NUM_COLOURS = 256


@dataclass(frozen=True)
class Picture:
    """One picture: where on the page, and how wide."""

    name: str
    # A selector; its element is at the top of the picture.
    place: str
    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"


PICTURES = (
    Picture("report_overview", "#overview", 1180, 780),
    Picture("report_curves", ".stage-curves:last-of-type", 1180, 780),
    Picture("report_rollouts", "#rollouts", 1180, 780, "dark"),
    Picture("report_phone", "#rollouts", 360, 740),
)


def main() -> None:
    """Write the report and its pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log_path", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    executable = next((path for name in _CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if executable is None:
        raise SystemExit(f"no browser: none of {', '.join(_CHROMIUM_NAMES)} is installed")
    page = write_report(options.log_path)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for picture in PICTURES:
            path = options.folder / f"{picture.name}.png"
            path.write_bytes(_take(browser, page, picture))
            print(path, path.stat().st_size)
        browser.close()


def _take(browser: Browser, page_path: Path, picture: Picture) -> bytes:
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme=picture.scheme,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(page_path.resolve().as_uri() + (picture.place if picture.place.startswith("#") else ""))
    page.wait_for_selector("html[data-state=ready]", timeout=60_000)
    page.locator(picture.place).evaluate("node => node.scrollIntoView()")
    if picture.place == "#rollouts":
        # A group whose members differ has the most to show.
        page.locator("[data-filter=sort]").select_option("-advantage")
        page.wait_for_selector(".episode")
    page.wait_for_timeout(400)
    picture_bytes = page.screenshot()
    context.close()
    small = io.BytesIO()
    image = Image.open(io.BytesIO(picture_bytes)).convert("RGB")
    image.quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    main()
