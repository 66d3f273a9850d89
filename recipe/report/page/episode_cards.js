// Episodes as cards: reward and its parts, what the environment said, and the turns token by token.

function makeEpisodeCard(run, episode, colouring, { isChosen, query, onChoose }) {
  const { columns, metrics } = run.index;
  const { i, turns, fault, attempt } = episode;
  const isFault = fault !== null;
  const member = columns.member[i];
  const head = make("div", { class: "episode-head" },
    make("span", { class: "reward" }, isFault ? "no reward" : numberText(columns.reward[i], 3)),
    columns.advantage[i] === null ? null : make("span", { class: "muted small" }, `advantage ${signedText(columns.advantage[i])}`),
    make("span", { class: "row-spacer" }),
    isFault ? make("span", { class: "badge badge-bad" }, `fault: ${fault.kind}`) : null,
    columns.flags[i] & IS_CUT ? make("span", { class: "badge badge-warn" }, "cut off") : null,
    make("button", { type: "button", class: "copy-button", on: { click: () => onChoose(i) }, "aria-pressed": String(isChosen) }, member < 0 ? `group (attempt ${attempt})` : `member ${member}`));
  const parts = tellingMetrics(run.index).filter((name) => metrics[name][i] !== null).map((name) => [wordsOf(name), numberText(metrics[name][i], 3)]);
  const steps = turns.length === 1 ? turns[0].reward : turns.reduce((sum, turn) => sum + (turn.reward ?? 0), 0);
  const rewardParts = isFault ? [] : [[turns.length > 1 ? "steps" : "step reward", numberText(steps, 3)], ["group reward", numberText(columns.final[i], 3)]];
  const facts = [...rewardParts, ...parts, ["tokens", numberText(columns.num_tokens[i])], turns.length > 1 ? ["turns", String(turns.length)] : null].filter(Boolean);
  return make("article", { class: `episode${isChosen ? " is-chosen" : ""}`, "data-episode": i }, head,
    make("div", { class: "parts" }, facts.map(([name, value]) => make("span", {}, `${name} `, make("b", {}, value)))),
    turns.map((turn, k) => makeTurn(turn, k, turns.length, colouring, query)),
    isFault ? make("div", { class: "fault-text" }, `${fault.where}\n${fault.error}\n\n${fault.traceback ?? ""}`) : null);
}

function makeTurn(turn, k, numTurns, colouring, query) {
  const given = k === 0 || !turn.given ? null
    : make("div", { class: "given-text", tabindex: 0, role: "group", "aria-label": turn.is_fresh ? "A new prompt" : "What the environment answered" }, markedText(turn.given, matchRanges(turn.given, query)));
  const own = [...Object.entries(turn.logs), ...(numTurns > 1 ? [["reward", turn.reward], ...Object.entries(turn.metrics)] : [])];
  const stop = turn.stop === "stop" ? null : make("span", {}, "stopped by ", make("b", {}, turn.stop === "length" ? "max_tokens" : turn.stop));
  const notes = [...own.map(([name, value]) => make("span", {}, `${wordsOf(name)} `, make("b", {}, typeof value === "number" ? numberText(value, 3) : String(value)))), stop].filter(Boolean);
  return make("div", {}, given, makeReply(turn, colouring, query), notes.length > 0 ? make("div", { class: "parts" }, notes) : null);
}

// Cards of several episodes side by side, under one colouring. `keep()` false: the view has moved on meanwhile.
async function makeEpisodeGrid(run, episodes, view, keep) {
  const loaded = await Promise.all(episodes.map((i) => loadEpisode(run, i)));
  if (!keep()) return null;
  const colouring = makeColouring(view.colour, loaded);
  const cards = loaded.map((episode) => makeEpisodeCard(run, episode, colouring, { isChosen: episode.i === view.chosen, query: view.query, onChoose: view.onChoose }));
  return { element: make("div", { class: "episode-grid" }, cards), key: makeColourKey(colouring) };
}
