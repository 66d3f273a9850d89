// Which metrics make one chart together, for each kind of stage. A chart is shown where at least one of its metrics is.

// [metric, name in the legend, {isTest, low, high}]
const PANELS = {
  sft: [
    ["NLL per token", [["train_mean_nll", "train"], ["test/nll", "held-out", { isTest: true }]]],
  ],
  preference: [
    ["Loss", [["loss", "train"], ["test/loss", "held-out", { isTest: true }]]],
    ["Pair accuracy", [
      ["pair_accuracy", "train"],
      ["test/pair_accuracy", "held-out", { isTest: true, low: "test/pair_accuracy_low", high: "test/pair_accuracy_high" }],
      ["test/length_only_accuracy", "length alone", { isTest: true }],
    ]],
    ["Margin", [["mean_margin", "train"], ["test/mean_margin", "held-out", { isTest: true }]]],
  ],
  dpo: [
    ["Loss", [["loss", "train"], ["test/loss", "held-out", { isTest: true }]]],
    ["Pair accuracy", [["pair_accuracy", "train"], ["test/pair_accuracy", "held-out", { isTest: true }]]],
    ["Margin", [["mean_margin", "train"], ["test/mean_margin", "held-out", { isTest: true }]]],
    ["Rewards", [["chosen_reward", "chosen"], ["rejected_reward", "rejected"],
      ["test/chosen_reward", "chosen, held-out", { isTest: true }], ["test/rejected_reward", "rejected, held-out", { isTest: true }]]],
  ],
  rl: [
    ["Reward", [["env/all/reward/total", "train"], ["test/env/all/reward/total", "held-out", { isTest: true }]], { showsAlarm: true }],
    ["Gold score", [["env/all/gold", "train"], ["test/env/all/gold", "held-out", { isTest: true }]], { showsAlarm: true }],
    ["Share correct", [["env/all/correct", "train"], ["test/env/all/correct", "held-out", { isTest: true }]]],
    ["KL to the reference, nats per reply", [["kl_policy_base_per_episode", "train"],
      ["test/kl_policy_base_per_episode", "held-out", { isTest: true }], ["yardstick/kl_per_reply", "yardstick", { isTest: true }]], { showsAlarm: true }],
    ["Entropy, nats per token", [["entropy", "train"], ["yardstick/entropy", "yardstick", { isTest: true }]]],
    ["Tokens per reply", [["ac_tokens_per_turn", "train"], ["test/ac_tokens_per_turn", "held-out", { isTest: true }],
      ["yardstick/reply_tokens", "yardstick", { isTest: true }]]],
    ["Replies cut off", [["env/all/frac_cut_off", "train"], ["test/env/all/frac_cut_off", "held-out", { isTest: true }],
      ["yardstick/cut_share", "yardstick", { isTest: true }]]],
    ["Groups", [["env/all/by_group/frac_mixed", "rewards differ"], ["env/all/by_group/frac_all_good", "all good"],
      ["env/all/by_group/frac_all_bad", "all bad"]]],
    ["Sampler against trainer, KL", [["kl_sample_train_v1", "v1"], ["kl_sample_train_v2", "v2"]]],
    ["Environment faults", [["env/all/faults/raised", "raised"], ["env/all/faults/hung", "hung"],
      ["env/all/faults/non_finite", "not finite"], ["env/all/faults/wrong_type", "wrong type"], ["env/all/faults/groups_dropped", "groups dropped"]],
    { onlyIfNotZero: true }],
    ["Repetition and diversity", [["yardstick/repetition", "repeated share"], ["yardstick/distinct_2", "distinct bigrams"]]],
  ],
};

// Shown for every kind of stage, after its own.
const COMMON_PANELS = [
  ["Learning rate", [["learning_rate", "learning rate"]]],
  ["Gradient norm", [["optim/grad_norm", "gradient norm"]]],
  ["Faults of numbers", [["faults/non_finite", "not finite"], ["faults/rolled_back_to_step", "rolled back to step"]], { onlyIfNotZero: true }],
  ["Seconds per step", [["time/step", "step"], ["time/sampling", "sampling"], ["time/training", "training"], ["time/evaluation", "evaluation", { isTest: true }]]],
];

const STAGE_TITLES = { sft: "Supervised fine-tuning", preference: "Preference model", dpo: "Direct preference optimisation", rl: "Reinforcement learning" };

function stageTitle(stage) {
  return STAGE_TITLES[stage.kind] ?? stage.name;
}

// The charts of a stage: {title, series, showsAlarm}.
function panelsOf(stage) {
  const panels = [];
  for (const [title, metrics, { onlyIfNotZero = false, showsAlarm = false } = {}] of [...(PANELS[stage.kind] ?? []), ...COMMON_PANELS]) {
    const series = metrics.map(([key, name, options = {}], i) => makeSeries(stage, key, name, i, options)).filter((one) => one.points.length > 0);
    const isFlat = series.every((one) => one.points.every((point) => point.y === 0));
    if (series.length > 0 && !(onlyIfNotZero && isFlat)) panels.push({ title, series, showsAlarm });
  }
  return panels;
}

function makeSeries(stage, key, name, colour, { isTest = false, low = null, high = null } = {}) {
  const series = { key, name, colour: colour % 8, points: pointsOf(stage, key), isTest };
  if (low !== null && high !== null) Object.assign(series, { low: pointsOf(stage, low), high: pointsOf(stage, high) });
  return series;
}

// Steps at which the yardstick raised its alarm.
function alarmMarks(stage) {
  const steps = pointsOf(stage, "yardstick/alarm").filter((point) => point.y > 0).map((point) => point.x);
  return steps.map((x, i) => ({ x, text: i === 0 ? "alarm" : "" }));
}
