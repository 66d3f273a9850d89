"""Training curves as a picture: one metric of one or several runs.

    python -m benchmarks.curves docs/images/math_rl.svg test/env/all/correct "Math RL"=runs/math_rl/rl
    python -m benchmarks.curves OUT.svg KEY a=runs/a0,runs/a1,runs/a2 b=runs/b0 --x minutes --ylabel accuracy

A label with several runs, given with commas, is drawn as their mean over the range from the lowest to the highest. The
same runs give the same bytes. Needs matplotlib, which the extra dev brings.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from mint.errors import InvalidRequest
from recipe.run_log import read_metrics

XAxis = Literal["step", "minutes"]
# (x, y) of each line that has the metric.
Curve = list[tuple[float, float]]


def read_curve(log_path: str | Path, key: str, x: XAxis = "step") -> Curve:
    """The metric `key` of a run, by step or by minutes of training so far (evaluation left out)."""
    lines = read_metrics(log_path)
    if not lines:
        raise InvalidRequest(f"{log_path}: no metrics.jsonl with a line in it; give the log_path of a run")
    curve: Curve = []
    seconds = 0.0
    for line in lines:
        if line.get(key) is not None:
            curve.append((float(line["step"]) if x == "step" else seconds / 60, float(line[key])))
        seconds += line.get("time/step", 0.0)
    if not curve:
        raise InvalidRequest(f"{log_path}: no line has {key!r}; its keys are {', '.join(sorted(lines[0]))}")
    return curve


def mean_and_range(curves: Sequence[Curve]) -> tuple[Curve, Curve, Curve]:
    """Mean, lowest and highest of several runs, at the places where all of them have a value."""
    shared = sorted(set.intersection(*({x for x, _ in curve} for curve in curves)))
    values = {x: [y for curve in curves for place, y in curve if place == x] for x in shared}
    return (
        [(x, sum(values[x]) / len(values[x])) for x in shared],
        [(x, min(values[x])) for x in shared],
        [(x, max(values[x])) for x in shared],
    )


def plot_curves(
    output: str | Path,
    key: str,
    runs: dict[str, list[str]],
    *,
    x: XAxis = "step",
    title: str = "",
    ylabel: str = "",
) -> None:
    """Draw `key` of the runs, by label, to an .svg or .png file. Errors as in read_curve."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    # Ids in the file follow from its content, so that a picture drawn again is the same file.
    settings: Any = {
        "svg.hashsalt": "curves",
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with plt.rc_context(settings):
        figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
        for label, paths in runs.items():
            curves = [read_curve(path, key, x) for path in paths]
            mean, low, high = mean_and_range(curves) if len(curves) > 1 else (curves[0], [], [])
            (line,) = axes.plot(*_columns(mean), label=label, marker="o", markersize=3)
            if low:
                axes.fill_between(
                    _columns(low)[0], _columns(low)[1], _columns(high)[1], color=line.get_color(), alpha=0.2
                )
        axes.set_xlabel("iteration" if x == "step" else "minutes")
        axes.set_ylabel(ylabel or key)
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, metadata={"Date": None} if str(output).endswith(".svg") else None)
        plt.close(figure)


def _columns(curve: Curve) -> tuple[list[float], list[float]]:
    return [x for x, _ in curve], [y for _, y in curve]


def _run(text: str) -> tuple[str, list[str]]:
    label, mark, paths = text.partition("=")
    if not mark or not label or not paths:
        raise argparse.ArgumentTypeError(f"{text!r}: write label=log_path, or label=log_path,log_path")
    return label, paths.split(",")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command of the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description="Training curves as a picture.")
    parser.add_argument("output", help="an .svg or .png file")
    parser.add_argument("key", help="a metric of metrics.jsonl")
    parser.add_argument("runs", nargs="+", type=_run, metavar="label=log_path", help="with commas: several seeds")
    parser.add_argument("--x", choices=("step", "minutes"), default="step")
    parser.add_argument("--title", default="")
    parser.add_argument("--ylabel", default="")
    options = parser.parse_args(arguments)
    try:
        plot_curves(
            options.output, options.key, dict(options.runs), x=options.x, title=options.title, ylabel=options.ylabel
        )
    except InvalidRequest as error:
        parser.exit(1, f"error: {error}\n")
    print(options.output)


if __name__ == "__main__":
    main()
