// A line chart over steps: several series, hover read-out, zoom by dragging, linear and logarithmic, smoothing.
// Charts that share a `link` ({range, listeners, ...}) show the same steps and the same hover line.

const PLOT_HEIGHT = 200;
const MARGIN = { top: 10, right: 14, bottom: 24, left: 50 };
const DOTS_BELOW = 26;
const DOUBLE_CLICK_MS = 260;

function makeLink() {
  return { range: null, hover: null, isLog: false, smoothing: 0, charts: [], onPick: null };
}

// series: {name, colour (0–7), points, isTest, low, high (points of a band)}; marks: {x, text} vertical lines.
function makeLineChart({ title, series, link, marks = [], xName = "step" }) {
  const svg = draw("svg", { class: "plot", tabindex: 0, role: "img", "aria-label": chartLabel(title, series) });
  const readout = make("div", { class: "readout" });
  const figure = make("figure", { class: "chart" },
    make("figcaption", {}, make("h4", {}, title), makeLegend(series)), svg, readout);
  const xs = [...new Set(series.flatMap((one) => one.points.map((point) => point.x)))].sort((a, b) => a - b);
  const chart = { svg, readout, series, link, marks, xName, xs, width: 0, frame: null };
  chart.redraw = () => chart.width > 0 && drawPlot(chart);
  chart.showHover = () => chart.frame && drawHover(chart);
  link.charts.push(chart);
  onWidth(svg, (width) => {
    chart.width = width;
    chart.redraw();
  });
  listenToPointer(chart);
  listenToKeys(chart);
  return figure;
}

// Calls redraw(width) when the element is first laid out, and whenever its width changes.
function onWidth(element, redraw) {
  let drawn = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width === 0 || width === drawn) return;
    drawn = width;
    redraw(width);
  }).observe(element);
}

function makeLegend(series) {
  if (series.length < 2) return null;
  return make("div", { class: "legend" }, series.map((one) =>
    make("span", { class: "legend-item" },
      draw("svg", { width: 18, height: 8, class: `plot-key series-${one.colour}`, "aria-hidden": "true" },
        draw("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": one.isTest ? "4 2" : null })),
      one.name)));
}

function chartLabel(title, series) {
  const parts = series.filter((one) => one.points.length > 0).map(({ name, points }) =>
    `${name} from ${numberText(points[0].y)} at step ${points[0].x} to ${numberText(points.at(-1).y)} at step ${points.at(-1).x}`);
  return `${title}: ${parts.join("; ")}. Arrow keys read out single steps.`;
}

function drawPlot(chart) {
  const { svg, series, link, width } = chart;
  const full = rangeOf(chart.xs, false);
  const [firstX, lastX] = link.range ?? [chart.xs[0] ?? full[0], chart.xs.at(-1) ?? full[1]];
  const inRange = ({ x }) => x >= firstX && x <= lastX;
  const lines = series.map((one) => ({ ...one, shown: smoothed(one.points, link.smoothing).filter(inRange), raw: one.points.filter(inRange) }));
  const values = lines.flatMap((one) => [...one.raw, ...(one.low ?? []).filter(inRange), ...(one.high ?? []).filter(inRange)].map((point) => point.y));
  const isLog = link.isLog && values.some((value) => value > 0);
  const [low, high] = rangeOf(values, isLog);
  const x = makeScale(firstX, lastX === firstX ? firstX + 1 : lastX, MARGIN.left, width - MARGIN.right, false);
  const y = makeScale(low, high, PLOT_HEIGHT - MARGIN.bottom, MARGIN.top, isLog);
  chart.frame = { x, y, lines, firstX, lastX };
  svg.setAttribute("height", PLOT_HEIGHT);
  svg.setAttribute("viewBox", `0 0 ${width} ${PLOT_HEIGHT}`);
  chart.hoverLayer = draw("g", { "aria-hidden": "true" });
  svg.replaceChildren(
    drawAxes(x, y, [firstX, lastX], [low, high], width, PLOT_HEIGHT, { isLogY: isLog, xName: chart.xName }),
    ...chart.marks.filter(inRange).map((mark) => drawMark(mark, x, width)),
    ...lines.flatMap((one) => drawSeries(one, x, y, link.smoothing > 0)),
    chart.hoverLayer);
  drawHover(chart);
}

// Grid, axes and their numbers. Used by other charts as well.
function drawAxes(x, y, [lowX, highX], [lowY, highY], width, height, { isLogY = false, isLogX = false, xName = "", wholeX = true }) {
  const group = draw("g", { "aria-hidden": "true" });
  const yTicks = ticksOf(lowY, highY, 4, isLogY);
  for (const tick of yTicks) {
    const at = Math.round(y(tick)) + 0.5;
    group.append(
      draw("line", { class: "grid-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }),
      draw("text", { x: MARGIN.left - 7, y: at + 4, "text-anchor": "end" }, tickText(tick, yTicks, isLogY)));
  }
  const bottom = height - MARGIN.bottom;
  group.append(draw("line", { class: "axis-line", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom + 0.5, y2: bottom + 0.5 }));
  const xTicks = ticksOf(lowX, highX === lowX ? lowX + 1 : highX, Math.max(2, Math.floor(width / 90)), isLogX);
  const shown = wholeX ? xTicks.filter(Number.isInteger) : xTicks;
  const roomForName = 7 * xName.length + 8;
  for (const tick of shown.filter((one) => x(one) < width - MARGIN.right - roomForName)) {
    group.append(draw("text", { x: x(tick), y: height - 6, "text-anchor": "middle" }, tickText(tick, shown, isLogX)));
  }
  if (xName) group.append(draw("text", { x: width - MARGIN.right, y: height - 6, "text-anchor": "end" }, xName));
  return group;
}

function drawMark(mark, x, chartWidth) {
  const at = x(mark.x);
  const isLate = at > 0.7 * chartWidth;
  return draw("g", {},
    draw("line", { class: "alarm-line", x1: at, x2: at, y1: MARGIN.top, y2: PLOT_HEIGHT - MARGIN.bottom }),
    draw("text", { class: "alarm-text", x: isLate ? at - 5 : at + 5, y: MARGIN.top + 10, "text-anchor": isLate ? "end" : "start" }, mark.text));
}

function pathOf(points, x, y) {
  let path = "";
  for (const point of points) {
    const at = y(point.y);
    if (at !== null) path += `${path === "" ? "M" : "L"}${x(point.x).toFixed(1)},${at.toFixed(1)}`;
  }
  return path;
}

function drawSeries(one, x, y, isSmoothed) {
  const group = draw("g", { class: `series-${one.colour}` });
  if (one.low && one.high) {
    const there = pathOf(one.high, x, y);
    const back = pathOf([...one.low].reverse(), x, y).replace("M", "L");
    group.append(draw("path", { class: "band", d: `${there}${back}Z` }));
  }
  if (isSmoothed) group.append(draw("path", { class: "line is-raw", d: pathOf(one.raw, x, y) }));
  group.append(draw("path", { class: `line${one.isTest ? " is-test" : ""}`, d: pathOf(one.shown, x, y) }));
  if (one.shown.length <= DOTS_BELOW) {
    for (const point of one.shown) {
      const at = y(point.y);
      if (at !== null) group.append(draw("circle", { class: "dot", cx: x(point.x), cy: at, r: 3 }));
    }
  }
  return [group];
}

// The last point of a series at or before `step`: sparse series keep their value until the next.
function valueAt(points, step) {
  let found = null;
  for (const point of points) {
    if (point.x > step) break;
    found = point;
  }
  return found;
}

function drawHover(chart) {
  const { link, frame, hoverLayer, readout } = chart;
  const step = link.hover;
  if (!hoverLayer) return;
  hoverLayer.replaceChildren();
  readout.replaceChildren();
  if (step === null || step < frame.firstX || step > frame.lastX) {
    readout.append(make("span", {}, "last"), ...frame.lines.filter((one) => one.shown.length > 0)
      .map((one) => make("span", {}, frame.lines.length > 1 ? `${one.name} ` : "", make("b", {}, numberText(one.shown.at(-1).y)))));
    return;
  }
  const at = frame.x(step);
  hoverLayer.append(draw("line", { class: "hover-line", x1: at, x2: at, y1: MARGIN.top, y2: PLOT_HEIGHT - MARGIN.bottom }));
  readout.append(make("span", {}, `${chart.xName} `, make("b", {}, numberText(step))));
  for (const one of frame.lines) {
    const point = valueAt(one.shown, step);
    if (point === null) continue;
    const place = frame.y(point.y);
    if (place !== null) hoverLayer.append(draw("circle", { class: `dot series-${one.colour}`, cx: frame.x(point.x), cy: place, r: 4 }));
    const when = point.x === step ? "" : ` (${chart.xName} ${point.x})`;
    readout.append(make("span", {}, `${one.name} `, make("b", {}, numberText(point.y)), when));
  }
}

function hoverAt(link, step) {
  link.hover = step;
  for (const chart of link.charts) chart.showHover();
}

function zoomTo(link, range) {
  link.range = range;
  for (const chart of link.charts) chart.redraw();
  link.onZoom?.();
}

function nearestStep(chart, clientX) {
  const step = chart.frame.x.invert(clientX - chart.svg.getBoundingClientRect().left);
  const shown = chart.xs.filter((x) => x >= chart.frame.firstX && x <= chart.frame.lastX);
  return shown.reduce((best, x) => (best === null || Math.abs(x - step) < Math.abs(best - step) ? x : best), null);
}

function listenToPointer(chart) {
  const { svg, link } = chart;
  let start = null;
  let box = null;
  let picking = 0;
  svg.addEventListener("pointerdown", (event) => {
    clearTimeout(picking);
    if (event.pointerType !== "mouse" || event.button !== 0 || !chart.frame) return;
    start = nearestStep(chart, event.clientX);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (!chart.frame) return;
    const step = nearestStep(chart, event.clientX);
    hoverAt(link, step);
    box?.remove();
    if (start === null || step === start) return;
    const [left, right] = [chart.frame.x(Math.min(start, step)), chart.frame.x(Math.max(start, step))];
    box = draw("rect", { class: "zoom-box", x: left, width: right - left, y: MARGIN.top, height: PLOT_HEIGHT - MARGIN.top - MARGIN.bottom });
    svg.append(box);
  });
  svg.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const end = nearestStep(chart, event.clientX);
    const range = [Math.min(start, end), Math.max(start, end)];
    start = null;
    box?.remove();
    if (range[0] < range[1]) zoomTo(link, range);
    else picking = setTimeout(() => link.onPick?.(end), DOUBLE_CLICK_MS);
  });
  svg.addEventListener("pointerleave", () => start === null && hoverAt(link, null));
  svg.addEventListener("dblclick", () => {
    clearTimeout(picking);
    zoomTo(link, null);
  });
}

function listenToKeys(chart) {
  const { svg, link, xs } = chart;
  svg.addEventListener("keydown", (event) => {
    const place = link.hover === null ? -1 : xs.indexOf(valueAt(xs.map((x) => ({ x })), link.hover)?.x);
    const moves = { ArrowRight: place + 1, ArrowLeft: place < 0 ? xs.length - 1 : place - 1, Home: 0, End: xs.length - 1 };
    if (event.key in moves) {
      hoverAt(link, xs[Math.min(Math.max(moves[event.key], 0), xs.length - 1)] ?? null);
      announce(chart.readout.textContent);
    } else if (event.key === "Escape") zoomTo(link, null);
    else if (event.key === "Enter" && link.hover !== null) link.onPick?.(link.hover);
    else return;
    event.preventDefault();
  });
  svg.addEventListener("blur", () => hoverAt(link, null));
}
