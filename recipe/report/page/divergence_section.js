// What optimising costs: KL against reward and gold, the yardstick beside the reward, the replies on which they disagree.

const SCATTER_HEIGHT = 260;
const KL_KEYS = ["kl_policy_base_per_episode", "yardstick/kl_per_reply", "test/kl_policy_base_per_episode", "kl_policy_base"];
const Y_KEYS = [
  ["env/all/reward/total", "Reward, train"], ["env/all/gold", "Gold score, train"], ["env/all/correct", "Share correct, train"],
  ["test/env/all/reward/total", "Reward, held-out"], ["test/env/all/gold", "Gold score, held-out"],
  ["yardstick/reward", "Yardstick: the reward"], ["yardstick/independent", "Yardstick: independent score"],
];

function makeDivergenceSection(run) {
  const blocks = run.core.stages.filter((stage) => stage.kind === "rl" || "yardstick/independent" in stage.metrics.columns).map((stage) => {
    const scatters = makeScatters(stage);
    const yardstick = makeYardstick(stage);
    const disagreements = makeDisagreements(stage.disagreements);
    return scatters.length || yardstick || disagreements ? make("div", {}, yardstick,
      scatters.length ? make("div", { class: "chart-grid is-fitted block" }, scatters) : null, disagreements) : null;
  }).filter((block) => block !== null);
  if (blocks.length === 0) return null;
  return makeSection("divergence", "KL and reward",
    "How far the policy moved from its reference, and what it gained. Reward that rises while gold or the independent score falls is over-optimisation.", blocks);
}

// One chart per score over the KL at the same step; the line joins the steps in order.
function makeScatters(stage) {
  const charts = [];
  for (const [key, title] of Y_KEYS) {
    const isYardstick = key.startsWith("yardstick/");
    const keys = KL_KEYS.filter((kl) => kl in stage.metrics.columns).sort((a, b) => b.startsWith("yardstick/") * isYardstick - a.startsWith("yardstick/") * isYardstick);
    const points = keys.map((kl) => pointsTogether(stage, kl, key)).find((found) => found.length > 1);
    if (points) charts.push(makeScatter(`${title} against KL`, points));
  }
  return charts;
}

function pointsTogether(stage, xKey, yKey) {
  const [xs, ys, alarms] = [xKey, yKey, "yardstick/alarm"].map((key) => stage.metrics.columns[key] ?? []);
  return stage.metrics.steps.map((step, i) => ({ step, x: xs[i] ?? null, y: ys[i] ?? null, isAlarm: alarms[i] > 0 }))
    .filter((point) => point.x !== null && point.y !== null);
}

function makeScatter(title, points) {
  const svg = draw("svg", { class: "plot", role: "img", "aria-label": `${title}: from KL ${numberText(points[0].x)} and ${numberText(points[0].y)} to KL ${numberText(points.at(-1).x)} and ${numberText(points.at(-1).y)}` });
  const readout = make("div", { class: "readout" });
  onWidth(svg, (width) => {
    const height = SCATTER_HEIGHT;
    const [rangeX, rangeY] = [rangeOf(points.map((point) => point.x), false), rangeOf(points.map((point) => point.y), false)];
    const x = makeScale(...rangeX, MARGIN.left, width - MARGIN.right, false);
    const y = makeScale(...rangeY, height - MARGIN.bottom, MARGIN.top, false);
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const show = (point) => readout.replaceChildren(make("span", {}, "step ", make("b", {}, numberText(point.step))), make("span", {}, "KL ", make("b", {}, numberText(point.x))), make("span", {}, "score ", make("b", {}, numberText(point.y))), point.isAlarm ? make("span", { class: "badge badge-bad" }, "alarm") : "");
    const lastStep = points.at(-1).step || 1;
    svg.replaceChildren(drawAxes(x, y, rangeX, rangeY, width, height, { xName: "KL, nats", wholeX: false }),
      draw("path", { class: "line is-raw series-7", d: pathOf(points, x, y) }),
      ...points.map((point) => {
        const dot = draw("circle", { class: `dot ${point.isAlarm ? "series-4" : "series-0"}`, cx: x(point.x), cy: y(point.y), r: point.isAlarm ? 6 : 4.5, "fill-opacity": 0.25 + 0.75 * (point.step / lastStep), tabindex: -1 });
        dot.addEventListener("pointerenter", () => show(point));
        return dot;
      }));
  });
  return make("figure", { class: "chart" }, make("figcaption", {}, make("h4", {}, title), make("span", { class: "muted small" }, "stronger: later")), svg, readout);
}

// Reward and independent score over the steps, in standard units of their own so that both fit one chart.
function makeYardstick(stage) {
  const [reward, independent] = ["yardstick/reward", "yardstick/independent"].map((key) => pointsOf(stage, key));
  if (independent.length === 0) return null;
  const marks = alarmMarks(stage);
  const best = stage.yardstick_best;
  const link = makeLink();
  const note = marks.length > 0
    ? make("p", { class: "note note-bad" }, `The yardstick raised its alarm at ${marks.length === 1 ? "step" : "steps"} ${marks.map((mark) => mark.x).join(", ")}: reward and independent score part.`)
    : make("p", { class: "note" }, "The yardstick raised no alarm: reward and independent score did not part.");
  return make("div", { class: "block" }, make("h3", {}, "The independent yardstick"), note,
    best && typeof best === "object" ? make("p", { class: "note" }, `Best checkpoint by the yardstick: iteration ${numberText(best.iteration)}, ${numberText(best.value)} `, best.sampler_path ? makeCopyButton(String(best.sampler_path), "checkpoint path") : "") : null,
    make("div", { class: "chart-grid is-fitted block" },
      makeLineChart({ title: "The reward that is optimised", series: [{ name: "reward", colour: 0, points: reward }], link, marks }),
      makeLineChart({ title: "The independent score", series: [{ name: "independent", colour: 2, points: independent }], link, marks })));
}

function makeDisagreements(records) {
  if (!records || records.length === 0) return null;
  const columns = [{ name: "step", isNumber: true }, { name: "reward", isNumber: true }, { name: "independent", isNumber: true }, { name: "prompt", isBreakable: true }, { name: "reply", isBreakable: true }];
  const rows = [...records].reverse().map((one) => [numberText(one.iteration ?? null), numberText(one.reward ?? null, 3), numberText(one.independent ?? null, 3),
    make("div", { class: "disagreement-text small" }, conversationText(one.prompt)), make("div", { class: "disagreement-text small" }, conversationText(one.reply ?? one.response))]);
  return make("details", { class: "block" }, make("summary", {}, `${countText(records.length, "reply", "replies")} on which reward and independent score disagree most`),
    make("div", { class: "card" }, makeTable(columns, rows, "Disagreements")));
}

// A conversation, a message or plain text, to be read.
function conversationText(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(conversationText).join("\n");
  if (typeof value === "object") return value.content === undefined ? JSON.stringify(value) : textOf(value.content);
  return String(value);
}
