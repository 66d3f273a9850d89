"""`mint report LOG_PATH`: write a run's report.html again, from whatever its folder holds by now."""

from __future__ import annotations

import argparse
import webbrowser

from recipe.report.report_file import write_report


def command(parser: argparse.ArgumentParser) -> None:
    """Complete the parser of `mint report`; see `mint.cli`."""
    parser.description = "write report.html for a run, finished or not"
    parser.add_argument("log_path", metavar="LOG_PATH", help="folder of a stage or of a pipeline")
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the report and print where it is."""
    path = write_report(options.log_path)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        print("no browser could be started here; open the file by hand")
    return 0
