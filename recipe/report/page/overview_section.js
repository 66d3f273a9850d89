// The overview: what came out of the run, the gates, and a card for each stage.

const MAIN_SETTINGS = [
  "model_name", "renderer_name", "lora_rank", "learning_rate", "max_steps", "num_epochs", "loss_fn", "loss", "readout", "advantage",
  "kl_penalty_coef", "max_tokens", "temperature", "dataset_builder", "dataset_builder.group_size", "dataset_builder.groups_per_batch",
  "dataset_builder.examples.batch_size", "load_checkpoint_path", "seed",
];
// [stage of summary.json, its row's name, key before, key after, note]
const SUMMARY_ROWS = [
  ["sft", "held-out NLL per token", "sft.nll_before", "sft.nll_after"],
  ["preference", "held-out pair accuracy", null, "preference.test_pair_accuracy"],
  ["rl", "gold on held-out prompts", "rl.gold_before", "rl.gold_after"],
  ["rl", "reward on held-out prompts", "rl.reward_before", "rl.reward_after"],
  ["rl", "preferred to SFT by gold", null, "rl.gold_win_rate", percentText],
  ["rl", "preferred to SFT by reward", null, "rl.reward_win_rate", percentText],
  ["rl", "KL to SFT, nats per reply", null, "rl.kl_to_sft"],
  ["rl", "KL to SFT, nats per token", null, "rl.kl_to_sft_per_token"],
];

function makeOverviewSection(run) {
  const { stages, summary } = run.core;
  const kinds = stages.map(stageTitle).join(", ").toLowerCase();
  const seconds = stages.reduce((sum, stage) => sum + (stage.seconds ?? 0), 0);
  const lead = [countText(stages.length, "stage"), `(${kinds})`, seconds > 0 ? `· ${durationText(seconds)} of steps and evaluations` : ""].join(" ");
  return makeSection("overview", run.core.title, lead,
    make("div", { class: "two-columns" }, summary ? makeSummary(summary) : makeHeadlines(stages),
      makeGates([...run.core.gates, ...stages.flatMap((stage) => stage.gates)])),
    make("div", { class: "block" }, make("h3", {}, "What each stage did"), make("div", { class: "card-grid" }, stages.map(makeStageCard))));
}

function makeSummary(summary) {
  const known = new Set(SUMMARY_ROWS.flatMap(([, , before, after]) => [before, after]));
  const rows = SUMMARY_ROWS.filter(([, , before, after]) => typeof summary[after] === "number" || typeof summary[before] === "number")
    .map(([stage, what, before, after, text = fixedText]) => [what, stage, before ? text(summary[before]) : "", text(summary[after])]);
  const others = Object.entries(summary).filter(([key, value]) => !known.has(key) && typeof value === "number" && key !== "rl.reward_source_prm")
    .map(([key, value]) => [wordsOf(key.replace(/^(sft|preference|rl)\./, "").replaceAll(".", ": ")), key.split(".")[0], "", Number.isInteger(value) ? numberText(value) : fixedText(value)]);
  const columns = [{ name: "measure" }, { name: "stage", isWide: true }, { name: "before", isNumber: true }, { name: "after", isNumber: true }];
  const note = summary["rl.reward_source_prm"] === 0
    ? make("p", { class: "note note-bad block" }, "The reward was the rule-based one: the preference model failed, or was not good enough to be optimised against.") : null;
  const bestOfN = ["gold", "reward"].filter((name) => typeof summary[`best_of_n.${name}`] === "number")
    .map((name) => [`best of ${summary["best_of_n.n"]}, no training: ${name}`, "sft", "", fixedText(summary[`best_of_n.${name}`])]);
  return make("div", { class: "card" }, make("div", { class: "card-head" }, make("h3", {}, "Result")),
    makeTable(columns, [...rows, ...bestOfN], "What came out of the pipeline"),
    others.length > 0 ? make("details", {}, make("summary", {}, `${countText(others.length, "more number")} of summary.json`), makeTable(columns, others, "More numbers")) : null,
    note);
}

// Without a pipeline's summary: first and last value of what each stage is about.
function makeHeadlines(stages) {
  const keys = { sft: ["test/nll", "train_mean_nll"], preference: ["test/pair_accuracy", "pair_accuracy"], dpo: ["test/pair_accuracy", "pair_accuracy"],
    rl: ["test/env/all/reward/total", "env/all/reward/total", "test/env/all/gold", "env/all/gold", "env/all/correct", "kl_policy_base_per_episode"] };
  const rows = stages.flatMap((stage) => (keys[stage.kind] ?? []).map((key) => {
    const points = pointsOf(stage, key);
    return points.length === 0 ? null : [make("code", {}, key), stage.name, numberText(points[0].y), numberText(points.at(-1).y)];
  }).filter((row) => row !== null));
  if (rows.length === 0) return make("p", { class: "note" }, "No metrics yet.");
  const columns = [{ name: "metric" }, { name: "stage", isWide: true }, { name: "first", isNumber: true }, { name: "last", isNumber: true }];
  return make("div", { class: "card" }, make("div", { class: "card-head" }, make("h3", {}, "First and last values")), makeTable(columns, rows, "First and last values"));
}

function makeGates(gates) {
  const card = (badge, ...children) => make("div", { class: "card", id: "gates" }, make("div", { class: "card-head" }, make("h3", {}, "Stage gates"), badge), ...children);
  if (gates.length === 0) return card(null, make("p", { class: "muted" }, "None recorded (no gates.json)."));
  const numFailed = gates.filter((gate) => gate.passed === false).length;
  const columns = [{ name: "check" }, { name: "stage", isWide: true }, { name: "result" }, { name: "value", isNumber: true }];
  const rows = gates.map((gate) => [
    make("span", {}, wordsOf(String(gate.name ?? "")),
      gate.measure ? make("span", { class: "gate-note" }, String(gate.measure).replace(/,$/, "")) : null,
      gate.passed !== true && gate.advice ? make("span", { class: `gate-note${gate.passed === false ? " is-bad" : ""}` }, String(gate.advice)) : null),
    String(gate.stage ?? ""), gateBadge(gate.passed),
    make("span", {}, numberText(gate.value ?? null, 3), Array.isArray(gate.interval) ? make("span", { class: "gate-note" }, gate.interval.map((end) => numberText(end, 3)).join("–")) : null,
      make("span", { class: "gate-note" }, wantedText(gate))),
  ]);
  const badge = numFailed > 0 ? make("span", { class: "badge badge-bad" }, `${numFailed} of ${gates.length} failed`)
    : make("span", { class: "badge badge-good" }, `none of ${gates.length} failed`);
  return card(badge, makeTable(columns, rows, "Stage gates"));
}

function gateBadge(passed) {
  if (passed === true) return make("span", { class: "badge badge-good" }, "passed");
  if (passed === false) return make("span", { class: "badge badge-bad" }, "failed");
  return make("span", { class: "badge" }, "not checked");
}

// What the value is compared with.
function wantedText(gate) {
  const [low, high] = [gate.low_threshold ?? gate.low ?? null, gate.high_threshold ?? gate.high ?? null];
  if (low !== null && high !== null) return `${numberText(low, 3)} to ${numberText(high, 3)}`;
  if (low !== null) return `${Array.isArray(gate.interval) ? "threshold" : "≥"} ${numberText(low, 3)}`;
  return high !== null ? `≤ ${numberText(high, 3)}` : "";
}

function makeStageCard(stage) {
  const { settings, metrics, checkpoints } = stage;
  const numSteps = metrics.steps.length;
  const facts = [
    ["steps logged", numSteps > 0 ? numSteps.toLocaleString("en-US") : null],
    ["time", durationText(stage.seconds)],
    ...MAIN_SETTINGS.filter((name) => settings[name] !== undefined && settings[name] !== "None").map((name) => [wordsOf(name.split(".").at(-1)), shortName(settings[name])]),
  ];
  return make("article", { class: "card", "data-stage": stage.name },
    make("div", { class: "card-head" }, make("h3", {}, stageTitle(stage)), make("code", { class: "muted" }, stage.folder || "this folder")),
    makeFacts(facts), makeCheckpoints(checkpoints, stage), makeManifest(stage.manifest), makeSettings(settings), makeChanges(stage));
}

// "recipe.rl.kl:KLReferenceConfig" as "KLReferenceConfig".
function shortName(value) {
  return /^[\w.]+:\w+$/.test(value) ? value.split(":").at(-1) : value;
}

const SHOWN_CHECKPOINTS = 4;

// The last checkpoints, the yardstick's choice first; the others when asked for.
function makeCheckpoints(checkpoints, stage) {
  if (checkpoints.length === 0) return make("p", { class: "muted small" }, "No checkpoints recorded.");
  const best = stage.yardstick_best;
  const shown = [...checkpoints].reverse();
  if (best && typeof best === "object") shown.unshift({ ...best, name: "best by yardstick", step: best.iteration });
  const entries = shown.map(makeCheckpoint);
  const unusable = stage.num_unusable_checkpoints ? `, ${stage.num_unusable_checkpoints} unusable` : "";
  const earlier = entries.slice(SHOWN_CHECKPOINTS);
  return make("details", { open: true }, make("summary", {}, `${countText(checkpoints.length, "checkpoint")}${unusable}`),
    entries.slice(0, SHOWN_CHECKPOINTS),
    earlier.length > 0 ? make("details", {}, make("summary", {}, `${earlier.length} earlier`), earlier) : null);
}

function makeCheckpoint({ name, step, state_path: state, sampler_path: sampler }) {
  const pathLine = (what, path) => (path ? make("div", { class: "path-line" },
    make("span", { class: "muted" }, what), make("code", { title: path }, String(path)), makeCopyButton(String(path), `path ${what} of ${name}`)) : null);
  return make("div", { class: "checkpoint" }, make("div", {}, make("b", {}, String(name)), make("span", { class: "muted" }, ` step ${numberText(step)}`)),
    pathLine("to train", state), pathLine("to sample", sampler));
}

function makeManifest(manifest) {
  if (manifest === null || typeof manifest !== "object") return null;
  const rows = Object.entries(manifest).map(([key, value]) => [wordsOf(key), make("code", {}, textOf(value))]);
  return make("details", {}, make("summary", {}, "Manifest"), makeFacts(rows));
}

function textOf(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function makeSettings(settings) {
  const names = Object.keys(settings);
  if (names.length === 0) return null;
  const rows = names.map((name) => [name, settings[name]]);
  return make("details", {}, make("summary", {}, `All ${countText(names.length, "setting")}`),
    make("div", { class: "settings", tabindex: 0, role: "region", "aria-label": "Settings" }, makeTable([{ name: "setting" }, { name: "value" }], rows, "Settings")));
}

function makeChanges(stage) {
  const rows = stage.config_changes.flatMap((record) => Object.entries(record.changes ?? {}).map(([name, [before, after]]) =>
    [name, numberText(record.resume_step), textOf(before), textOf(after)]));
  if (rows.length === 0) return null;
  const columns = [{ name: "setting" }, { name: "at step", isNumber: true }, { name: "was" }, { name: "is" }];
  return make("details", {}, make("summary", {}, `${countText(rows.length, "setting")} changed on resume`), makeTable(columns, rows, "Changed settings"));
}

// What could not be read, and what the run does not have.
function makeNotesSection(run) {
  const { problems, rollouts, stages } = run.core;
  const missing = [];
  for (const stage of stages) {
    if (stage.metrics.steps.length === 0) missing.push(`${stage.name}: no metrics.jsonl`);
    if (stage.kind === "preference" && !stage.report_card) missing.push(`${stage.name}: no report_card.json`);
    if (stage.kind === "rl" && !("yardstick/independent" in stage.metrics.columns)) missing.push(`${stage.name}: no independent yardstick was measured`);
  }
  if (rollouts.num_episodes === 0) missing.push("no rollouts were exported");
  if (rollouts.num_shown_files < rollouts.num_files) {
    missing.push(`${rollouts.num_shown_files} of ${rollouts.num_files} rollout files are in this page, evenly spaced; the others would make it too large`);
  }
  if (missing.length === 0 && problems.length === 0) return null;
  const columns = [{ name: "file" }, { name: "line", isNumber: true }, { name: "problem", isBreakable: true }];
  const rows = problems.map((one) => [make("code", {}, one.file), one.line === null ? "" : String(one.line), one.what]);
  return makeSection("notes", "Notes", "What this page lacks, and what of the run's folder could not be read.",
    missing.length > 0 ? make("ul", {}, missing.map((text) => make("li", {}, text))) : null,
    rows.length > 0 ? make("div", { class: "card block", id: "problems" }, make("h3", {}, "Damaged or unreadable"), makeTable(columns, rows, "Problems")) : null);
}
