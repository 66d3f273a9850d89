// The curves of every stage: linked charts, common controls, and a chart of any metrics.

const MAX_PICKED = 8;

function makeCurveSection(run) {
  const links = [];
  const stages = run.core.stages.filter((stage) => stage.metrics.steps.length > 0);
  if (stages.length === 0) return null;
  const blocks = stages.map((stage) => {
    const link = makeLink();
    link.onPick = run.index && hasRollouts(run, stage) ? (step) => run.showIteration(stage, step) : null;
    links.push(link);
    return makeStageCurves(stage, link);
  });
  const canPick = links.some((link) => link.onPick !== null);
  return makeSection("curves", "Curves",
    `Drag across a chart to zoom, double-click to zoom out.${canPick ? " A click on a step opens its rollouts." : ""}`,
    makeCurveControls(links), blocks);
}

function hasRollouts(run, stage) {
  return run.index.files.some((file) => run.core.stages[file.stage] === stage);
}

function makeCurveControls(links) {
  const redraw = () => links.forEach((link) => link.charts.forEach((chart) => chart.redraw()));
  const scale = makeSegmented("Vertical scale", [["linear", "linear"], ["log", "log"]], "linear", (value) => {
    for (const link of links) link.isLog = value === "log";
    redraw();
  });
  const shown = make("output", {}, "off");
  const slider = make("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, id: "smoothing", on: { input: () => {
    for (const link of links) link.smoothing = Number(slider.value);
    shown.textContent = Number(slider.value) === 0 ? "off" : slider.value;
    redraw();
  } } });
  const reset = make("button", { type: "button", class: "tool-button", disabled: true, on: { click: () => links.forEach((link) => zoomTo(link, null)) } }, "Zoom out");
  for (const link of links) link.onZoom = () => { reset.disabled = links.every((one) => one.range === null); };
  return make("div", { class: "toolbar" }, scale.element, make("label", { for: "smoothing" }, "Smoothing", slider, shown), reset);
}

function makeStageCurves(stage, link) {
  const marks = alarmMarks(stage);
  const charts = panelsOf(stage).map((panel) => makeLineChart({ ...panel, link, marks: panel.showsAlarm ? marks : [] }));
  return make("div", { class: "stage-curves" },
    make("h3", {}, stageTitle(stage), " ", make("code", { class: "muted" }, stage.folder)), make("div", { class: "chart-grid" }, charts), makeMetricPicker(stage, link));
}

// Any metrics of metrics.jsonl, chosen by name and drawn together.
function makeMetricPicker(stage, link) {
  const keys = Object.keys(stage.metrics.columns).sort();
  const chosen = new Set();
  const place = make("div", { class: "chart-grid" });
  const boxes = keys.map((key) => {
    const box = make("input", { type: "checkbox", on: { change: () => choose(key, box) } });
    return make("label", { class: "check" }, box, key);
  });
  const search = make("input", { type: "search", placeholder: "Name of a metric", "aria-label": `Find a metric of ${stageTitle(stage)}`, on: { input: () => {
    for (const [i, box] of boxes.entries()) box.hidden = !keys[i].includes(search.value.trim());
  } } });
  let chart = null;
  function choose(key, box) {
    if (box.checked) chosen.add(key);
    else chosen.delete(key);
    if (chosen.size > MAX_PICKED) {
      chosen.delete(key);
      box.checked = false;
      announce(`At most ${MAX_PICKED} metrics in one chart`);
    }
    link.charts = link.charts.filter((one) => one !== chart);
    place.replaceChildren();
    if (chosen.size === 0) return;
    const series = [...chosen].map((one, i) => makeSeries(stage, one, one, i));
    place.append(makeLineChart({ title: "Chosen metrics", series, link }));
    chart = link.charts.at(-1);
  }
  return make("details", { class: "metric-picker" },
    make("summary", {}, `Draw any of ${countText(keys.length, "metric")}`), search, make("div", { class: "metric-list" }, boxes), place);
}
