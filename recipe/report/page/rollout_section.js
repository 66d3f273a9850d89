// The rollout explorer: filters and list on one side, the chosen episode's group, or its prompt at every step, on the other.

const MAX_STEPS_TOGETHER = 40;

function makeRolloutSection(run) {
  if (!run.index) return null;
  const explorer = { run, filter: emptyFilter(), matches: null, chosen: -1, colour: "advantage", isAcrossSteps: false, drawing: 0 };
  explorer.list = makeRolloutList(run, (i) => choose(explorer, i));
  explorer.status = make("div", { class: "list-status", role: "status", id: "list-status" });
  explorer.detail = make("div", { class: "detail", id: "rollout-detail" });
  explorer.filters = makeFilters(explorer);
  run.explorer = explorer;
  run.showIteration = (stage, step) => showIteration(explorer, stage, step);
  const section = makeSection("rollouts", "Rollouts",
    `${countText(run.index.num_episodes, "episode")} of ${countText(run.index.files.length, "batch", "batches")}. Press ? for the keys.`,
    make("div", { class: "explorer" },
      make("div", { class: "explorer-side" }, explorer.filters.element, explorer.status, explorer.list.element), explorer.detail));
  return section;
}

function makeFilters(explorer) {
  const { run, filter } = explorer;
  const { index } = run;
  const setChange = (name, value, startsAnew = false) => {
    filter[name] = value;
    if (startsAnew) explorer.chosen = -1;
    refresh(explorer);
  };
  const numberInput = (name, label) => make("input", { type: "number", step: "any", "aria-label": label, "data-filter": name, on: { input: (event) => setChange(name, event.target.value === "" ? null : Number(event.target.value)) } });
  const select = (name, label, choices) => make("select", { "aria-label": label, "data-filter": name, on: { change: (event) => setChange(name, event.target.value, name === "sort") } }, choices.map(([value, text]) => make("option", { value }, text)));
  const check = (name, label) => make("label", { class: "check" }, make("input", { type: "checkbox", "data-filter": name, on: { change: (event) => setChange(name, event.target.checked) } }), label);
  const sets = [...new Set(index.files.map((file) => file.set))];
  const search = make("input", { type: "search", id: "rollout-search", placeholder: "Search prompts and replies", "aria-label": "Search prompts and replies", "data-filter": "query", on: { input: () => startSearch(explorer, search.value) } });
  const sorts = [["order", "in order"], ["-reward", "highest reward"], ["reward", "lowest reward"], ["-advantage", "highest advantage"], ["advantage", "lowest advantage"], ["-num_tokens", "longest"], ["num_tokens", "shortest"],
    ...tellingMetrics(index).flatMap((name) => [[`-${name}`, `highest ${wordsOf(name)}`], [name, `lowest ${wordsOf(name)}`]])];
  const clear = make("button", { type: "button", class: "tool-button", id: "clear-filters", on: { click: () => clearFilters(explorer) } }, "Clear");
  const row = (...children) => make("div", { class: "filter-row" }, children.filter(Boolean));
  const element = make("form", { class: "filters", role: "search", "aria-label": "Filter rollouts", on: { submit: (event) => event.preventDefault() } },
    row(make("span", { class: "search-label" }, search), clear),
    row(sets.length > 1 ? select("set", "Set", [["", "all sets"], ...sets.map((set) => [set, set])]) : null,
      select("sort", "Order", sorts),
      index.tags.length > 1 ? select("tag", "Tag", [["", "any tag"], ...index.tags.map((tag) => [tag, tag])]) : null,
      index.environments.length > 1 ? select("env", "Environment", [["", "any environment"], ...index.environments.map((env) => [env, env])]) : null),
    row(make("label", {}, "step", numberInput("fromStep", "From step"), "to", numberInput("toStep", "To step")),
      make("label", {}, "reward", numberInput("minReward", "Lowest reward"), "to", numberInput("maxReward", "Highest reward"))),
    row(check("onlyCut", "cut off"), check("onlyFault", "environment failed")));
  return { element, search };
}

// The inputs as the filter says; after a link or a keystroke changed it.
function showFilter(explorer) {
  for (const input of explorer.filters.element.querySelectorAll("[data-filter]")) {
    const value = explorer.filter[input.dataset.filter];
    if (input.type === "checkbox") input.checked = value;
    else input.value = value ?? "";
  }
}

function clearFilters(explorer) {
  Object.assign(explorer.filter, emptyFilter());
  explorer.matches = null;
  cancelSearch();
  showFilter(explorer);
  refresh(explorer);
}

function startSearch(explorer, query) {
  explorer.filter.query = query.trim();
  if (explorer.filter.query === "") {
    cancelSearch();
    explorer.matches = null;
    refresh(explorer);
    return Promise.resolve();
  }
  const show = (matches, share) => { explorer.matches = matches; refresh(explorer, share); };
  return searchEpisodes(explorer.run, explorer.filter.query, show).then((matches) => matches !== null && show(matches, 1));
}

// List, status and link, after the filter changed. The first episode is chosen where the chosen one is not listed.
function refresh(explorer, shareSearched = 1) {
  const { run, filter, list } = explorer;
  const episodes = filteredEpisodes(run.index, filter, explorer.matches);
  list.show(episodes);
  explorer.status.replaceChildren(
    make("span", {}, `${episodes.length.toLocaleString("en-US")} of ${countText(run.index.num_episodes, "rollout")}`),
    make("span", {}, shareSearched < 1 ? `searching, ${percentText(shareSearched, 0)}` : filter.prompt !== null ? "one prompt only" : "step · group.member"));
  if (episodes.length > 0 && !episodes.includes(explorer.chosen)) choose(explorer, episodes[0]);
  else {
    list.choose(explorer.chosen);
    drawDetail(explorer);
    writeLink(explorer);
  }
}

function choose(explorer, i) {
  explorer.chosen = i;
  explorer.list.choose(i);
  drawDetail(explorer);
  writeLink(explorer);
}

async function drawDetail(explorer) {
  const { run, chosen, detail } = explorer;
  if (chosen < 0) return;
  explorer.drawing += 1;
  const drawing = explorer.drawing;
  const keep = () => drawing === explorer.drawing;
  const { columns, files } = run.index;
  const file = files[columns.file[chosen]];
  const history = promptHistory(run.index, columns.prompt[chosen]);
  const view = { colour: explorer.colour, chosen, query: explorer.filter.query, onChoose: (i) => choose(explorer, i) };
  const key = make("span", { class: "colour-key", id: "colour-key" });
  const body = explorer.isAcrossSteps ? await drawSteps(run, history, view, keep) : await makeEpisodeGrid(run, groupOf(run.index, chosen), view, keep);
  if (body === null || !keep()) return;
  key.replaceChildren(body.key);
  const title = `${file.set === "train" ? "Step" : `${file.set}, step`} ${file.iteration}, group ${columns.group[chosen]}`;
  const top = make("div", { class: "detail-head" },
    make("h3", { id: "detail-title" }, explorer.isAcrossSteps ? "The same prompt at every step" : title),
    make("div", { class: "toolbar" }, makeColourControl(explorer), makeAcrossButton(explorer, history)));
  detail.replaceChildren(top, makePromptCard(run, chosen, view.query), makeStepChips(explorer, history), key, body.element);
}

function makeColourControl(explorer) {
  return makeSegmented("Colour of the tokens", COLOUR_MODES, explorer.colour, (mode) => setColour(explorer, mode)).element;
}

function setColour(explorer, mode) {
  explorer.colour = mode;
  drawDetail(explorer);
  writeLink(explorer);
}

function makeAcrossButton(explorer, history) {
  return make("button", { type: "button", class: "tool-button", id: "across-button", "aria-pressed": String(explorer.isAcrossSteps), disabled: history.length < 2,
    title: history.length < 2 ? "This prompt was played once" : null,
    on: { click: () => { explorer.isAcrossSteps = !explorer.isAcrossSteps; drawDetail(explorer); writeLink(explorer); } } }, "across steps");
}

function makePromptCard(run, i, query) {
  const { columns, environments, tags } = run.index;
  const prompt = run.prompts[columns.prompt[i]];
  const labels = [environments[columns.env[i]], ...columns.tags[i].map((tag) => tags[tag])].filter(Boolean);
  return make("div", { class: "card" },
    make("div", { class: "card-head" }, make("h4", {}, "Prompt"), make("span", { class: "muted small" }, labels.join(" · "))),
    make("div", { class: "prompt-text", tabindex: 0, role: "group", "aria-label": "Prompt" }, markedText(prompt, matchRanges(prompt, query))));
}

// The prompt's other groups, as buttons in order of the steps.
function makeStepChips(explorer, history) {
  if (history.length < 2) return null;
  const iFile = explorer.run.index.columns.file[explorer.chosen];
  const { files } = explorer.run.index;
  const chips = history.map(({ file, episodes, meanReward }) => make("button", {
    type: "button", class: "step-chip", "aria-current": String(file === files[iFile]), on: { click: () => choose(explorer, episodes[0]) },
  }, `${file.set === "train" ? "" : `${file.set} `}${file.iteration}`, make("small", {}, numberText(meanReward, 3))));
  const strip = make("div", { class: "steps", role: "group", "aria-label": "The same prompt at other steps, with its mean reward" }, chips);
  requestAnimationFrame(() => {
    const current = strip.querySelector("[aria-current='true']");
    if (current) strip.scrollLeft = current.offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
  });
  return strip;
}

async function drawSteps(run, history, view, keep) {
  const shown = history.length <= MAX_STEPS_TOGETHER ? history : evenlySpaced(history, MAX_STEPS_TOGETHER);
  const grids = [];
  for (const { episodes } of shown) {
    const grid = await makeEpisodeGrid(run, episodes, view, keep);
    if (grid === null) return null;
    grids.push(grid);
  }
  const blocks = shown.map(({ file, meanReward }, k) => make("div", { class: "step-block" },
    make("h4", {}, `${file.set === "train" ? "Step" : `${file.set}, step`} ${file.iteration} `, make("span", { class: "muted" }, `mean reward ${numberText(meanReward, 3)}`)), grids[k].element));
  const note = shown.length < history.length ? make("p", { class: "muted small" }, `${shown.length} of ${history.length} steps, evenly spaced`) : null;
  return { element: make("div", {}, note, blocks), key: grids[0].key };
}

function evenlySpaced(items, count) {
  return Array.from({ length: count }, (_, k) => items[Math.round((k * (items.length - 1)) / (count - 1))]);
}

// The neighbouring step of the same prompt.
function moveStep(explorer, by) {
  const { index } = explorer.run;
  const history = promptHistory(index, index.columns.prompt[explorer.chosen]);
  const here = history.findIndex(({ file }) => file === index.files[index.columns.file[explorer.chosen]]);
  const there = history[here + by];
  if (there) choose(explorer, there.episodes.find((i) => index.columns.member[i] === index.columns.member[explorer.chosen]) ?? there.episodes[0]);
}

function showIteration(explorer, stage, step) {
  const { index, core } = explorer.run;
  const files = index.files.filter((file) => core.stages[file.stage] === stage && file.count > 0);
  const file = files.find((one) => one.iteration === step && one.set === "train") ?? files.find((one) => one.iteration >= step) ?? files.at(-1);
  if (!file) return;
  Object.assign(explorer.filter, emptyFilter(), { fromStep: file.iteration, toStep: file.iteration });
  explorer.matches = null;
  cancelSearch();
  explorer.chosen = file.first;
  showFilter(explorer);
  refresh(explorer);
  byId("rollouts").scrollIntoView();
}

// The state of the explorer as a link: "#rollouts?e=train.12.3.1&colour=ratio&q=text".
const LINK_NAMES = { set: "set", fromStep: "from", toStep: "to", minReward: "min", maxReward: "max", tag: "tag", env: "env", onlyCut: "cut", onlyFault: "fault", prompt: "prompt", query: "q", sort: "sort" };

function writeLink(explorer) {
  if (!explorer.canWriteLinks) return;
  const values = new URLSearchParams();
  if (explorer.chosen >= 0) values.set("e", episodeName(explorer.run.index, explorer.chosen));
  if (explorer.colour !== "advantage") values.set("colour", explorer.colour);
  if (explorer.isAcrossSteps) values.set("across", "1");
  const nothing = emptyFilter();
  for (const [name, short] of Object.entries(LINK_NAMES)) {
    if (explorer.filter[name] !== nothing[name]) values.set(short, explorer.filter[name] === true ? "1" : explorer.filter[name]);
  }
  history.replaceState(null, "", `#rollouts?${values}`);
}

async function readLink(explorer, text) {
  const values = new URLSearchParams(text);
  const filter = emptyFilter();
  for (const [name, short] of Object.entries(LINK_NAMES)) {
    if (!values.has(short)) continue;
    const value = values.get(short);
    if (typeof filter[name] === "boolean") filter[name] = value === "1";
    else filter[name] = filter[name] === null ? (Number.isFinite(Number(value)) ? Number(value) : null) : value;
  }
  Object.assign(explorer.filter, filter);
  const colour = values.get("colour");
  if (COLOUR_MODES.some(([mode]) => mode === colour)) explorer.colour = colour;
  explorer.isAcrossSteps = values.get("across") === "1";
  const chosen = episodeByName(explorer.run.index, values.get("e") ?? "");
  if (chosen >= 0) explorer.chosen = chosen;
  showFilter(explorer);
  if (filter.query !== "") await startSearch(explorer, filter.query);
  else refresh(explorer);
}
