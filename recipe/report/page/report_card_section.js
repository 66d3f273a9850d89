// The report card of a preference model: accuracy with intervals, reliability, correlations, probes, other wordings.

function makeReportCardSection(run) {
  const stages = run.core.stages.filter((stage) => stage.report_card && typeof stage.report_card === "object");
  if (stages.length === 0) return null;
  return makeSection("report-card", "Preference model",
    "How far the model that gives the reward can be trusted: measured on pairs that it was not trained on.",
    stages.map((stage) => makeReportCard(stage.report_card, stages.length > 1 ? stage.name : null)));
}

function makeReportCard(card, name) {
  return make("div", { class: "block" },
    name ? make("h3", {}, name) : null,
    make("div", { class: "figures" }, makeFigures(card)),
    make("div", { class: "two-columns block" }, makeAccuracyCard(card), makeReliabilityCard(card)),
    make("div", { class: "two-columns block" }, makeProbeCard(card), makeCorrelationCard(card)),
    makeParaphrase(card.paraphrase));
}

function makeFigures(card) {
  const figure = (name, value, note) => make("div", { class: "card" },
    make("div", { class: "figure-name" }, name), make("div", { class: "figure-value" }, value), make("div", { class: "figure-note" }, note));
  const { accuracy, length_only_accuracy: byLength } = card;
  const beatsLength = accuracy?.low !== undefined && byLength?.value !== undefined ? accuracy.low > byLength.value : null;
  return [
    accuracy ? figure("held-out accuracy", numberText(accuracy.value, 3), intervalText(accuracy)) : null,
    byLength ? figure("length alone", numberText(byLength.value, 3),
      beatsLength === null ? "" : beatsLength ? "below the model's interval" : "not clearly below the model") : null,
    card.ece !== undefined ? figure("calibration error (ECE)", numberText(card.ece, 3), `Brier score ${numberText(card.brier, 3)}`) : null,
    card.probes_passed !== undefined && card.probes_passed !== null
      ? figure("probes", card.probes_passed ? "passed" : "failed", countText(Object.keys(card.probes ?? {}).length, "kind")) : null,
  ];
}

function intervalText({ low, high, num_pairs: numPairs }) {
  const interval = typeof low === "number" ? `95 %: ${numberText(low, 3)} to ${numberText(high, 3)}` : "";
  return [interval, typeof numPairs === "number" ? countText(numPairs, "pair") : ""].filter(Boolean).join(", ");
}

function makeAccuracyCard(card) {
  const rows = [["all held-out pairs", card.accuracy, 0], ["length-balanced pairs", card.length_balanced, 0],
    ["where length says otherwise", card.beats_length_only, 0], ["length alone", card.length_only_accuracy, 7], ...Object.entries(card.by_source ?? {}).map(([name, share]) => [name, share, 2])]
    .filter(([, share]) => share && typeof share.value === "number");
  const columns = [{ name: "accuracy" }, { name: "" }, { name: "share", isNumber: true }, { name: "95 %", isNumber: true }, { name: "pairs", isNumber: true }];
  return make("div", { class: "card" }, make("h3", {}, "Accuracy"),
    makeTable(columns, rows.map(([name, share, colour]) => [
      name, drawInterval(share, colour), numberText(share.value, 3),
      typeof share.low === "number" ? `${numberText(share.low, 3)}–${numberText(share.high, 3)}` : "", numberText(share.num_pairs)]), "Accuracy"),
    make("p", { class: "muted small" }, "The bar runs from 0 to 1; the tick is chance."));
}

function drawInterval({ value, low, high }, colour) {
  const width = 110;
  return draw("svg", { width, height: 18, viewBox: `0 0 ${width} 18`, class: `plot series-${colour}`, "aria-hidden": "true" },
    draw("rect", { class: "bar-track", x: 0, y: 7, width, height: 4, rx: 2 }),
    typeof low === "number" ? draw("rect", { class: "band", x: low * width, y: 3, width: Math.max((high - low) * width, 1), height: 12, rx: 3 }) : null,
    draw("line", { class: "reference", x1: width / 2, x2: width / 2, y1: 2, y2: 16 }),
    draw("circle", { class: "dot", cx: value * width, cy: 9, r: 4 }));
}

// Predicted probability against the share that was right; the diagonal is perfect calibration.
function makeReliabilityCard(card) {
  const bins = (card.reliability ?? []).filter((bin) => bin.num_pairs > 0);
  const heading = make("h3", {}, "Reliability");
  if (bins.length === 0) return make("div", { class: "card" }, heading, make("p", { class: "muted" }, "Not measured."));
  const height = 250;
  const lowest = Math.min(0.5, ...bins.map((bin) => Math.min(bin.share_right, bin.mean_predicted)));
  const low = Math.floor(lowest * 10) / 10;
  const y = makeScale(low, 1, height - MARGIN.bottom, MARGIN.top, false);
  const most = Math.max(...bins.map((bin) => bin.num_pairs));
  const label = bins.map((bin) => `predicted ${numberText(bin.mean_predicted, 2)}, right ${numberText(bin.share_right, 2)}`).join("; ");
  const svg = draw("svg", { class: "plot", height, role: "img", "aria-label": `Reliability: ${label}` });
  onWidth(svg, (width) => {
    const x = makeScale(low, 1, MARGIN.left, width - MARGIN.right, false);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(
      drawAxes(x, y, [low, 1], [low, 1], width, height, { xName: "predicted", wholeX: false }),
      draw("line", { class: "reference", x1: x(low), y1: y(low), x2: x(1), y2: y(1) }),
      draw("g", { class: "series-0" },
        draw("path", { class: "line", d: pathOf(bins.map((bin) => ({ x: bin.mean_predicted, y: bin.share_right })), x, y) }),
        bins.map((bin) => draw("circle", { class: "dot", cx: x(bin.mean_predicted), cy: y(bin.share_right), r: 3 + 6 * Math.sqrt(bin.num_pairs / most) },
          draw("title", {}, `${countText(bin.num_pairs, "pair")}: predicted ${numberText(bin.mean_predicted, 3)}, right ${numberText(bin.share_right, 3)}`)))));
  });
  return make("figure", { class: "card" }, make("figcaption", { class: "card-head" }, heading,
    make("span", { class: "muted small" }, card.temperature !== undefined ? `temperature ${numberText(card.temperature, 3)}` : "")),
  svg,
  make("p", { class: "muted small" }, "Across: predicted probability of the chosen reply; up: share of pairs ordered rightly. On the dashed line the model is as sure as it should be; larger dots hold more pairs."));
}

function makeProbeCard(card) {
  const probes = Object.entries(card.probes ?? {});
  const heading = make("h3", {}, "Probes");
  if (probes.length === 0) return make("div", { class: "card" }, heading, make("p", { class: "muted" }, "No probes were made."));
  const wanted = card.min_probe_share;
  const columns = [{ name: "bad answer" }, { name: "" }, { name: "scores lower", isNumber: true }, { name: "mean margin", isNumber: true }, { name: "probes", isNumber: true }];
  const rows = probes.map(([name, probe]) => {
    const isPassed = probe.passed ?? (wanted === undefined ? null : probe.share_passed >= wanted);
    return [wordsOf(name), gateBadge(isPassed), percentText(probe.share_passed, 0), numberText(probe.mean_margin, 3), numberText(probe.num)];
  });
  return make("div", { class: "card" }, heading, makeTable(columns, rows, "Probes"),
    make("p", { class: "muted small" }, "Chosen replies made worse in one way each: the model should score them lower."));
}

function makeCorrelationCard(card) {
  const entries = Object.entries(card.correlations ?? {}).filter(([, r]) => typeof r === "number");
  const heading = make("h3", {}, "Score and surface");
  if (entries.length === 0) return make("div", { class: "card" }, heading, make("p", { class: "muted" }, "No correlations were measured."));
  const rows = entries.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).map(([name, r]) => [wordsOf(name), drawSigned(r), signedText(r, 2)]);
  return make("div", { class: "card" }, heading,
    makeTable([{ name: "feature of the reply" }, { name: "" }, { name: "correlation", isNumber: true }], rows, "Correlations of the score"),
    make("p", { class: "muted small" }, "A score that follows length or punctuation closely invites replies that are only long or well punctuated."));
}

function drawSigned(r) {
  const width = 140;
  const size = Math.min(Math.abs(r), 1) * (width / 2);
  return draw("svg", { width, height: 14, viewBox: `0 0 ${width} 14`, class: `plot series-${r < 0 ? 1 : 0}`, "aria-hidden": "true" },
    draw("rect", { class: "bar-track", x: 0, y: 4, width, height: 6, rx: 3 }),
    draw("rect", { class: "bar-fill", x: r < 0 ? width / 2 - size : width / 2, y: 4, width: size, height: 6 }),
    draw("line", { class: "reference", x1: width / 2, x2: width / 2, y1: 0, y2: 14 }));
}

function makeParaphrase(paraphrase) {
  if (!paraphrase || typeof paraphrase !== "object") return null;
  if (paraphrase.applicable === false) return make("p", { class: "note block" }, `Other wordings of the judge's question: ${paraphrase.reason ?? "not applicable"}.`);
  const rows = Object.entries(paraphrase.by_wording ?? {}).map(([wording, one]) => [wording, percentText(one.share_changed), numberText(one.mean_abs_delta, 3)]);
  const columns = [{ name: "the judge asked in other words" }, { name: "pairs that change sides", isNumber: true }, { name: "mean change of the margin", isNumber: true }];
  return make("div", { class: "card block" }, make("h3", {}, "Other wordings of the judge's question"),
    rows.length > 0 ? makeTable(columns, rows, "Other wordings")
      : makeFacts(Object.entries(paraphrase).map(([key, value]) => [wordsOf(key), typeof value === "number" ? numberText(value) : textOf(value)])));
}
