// The list of episodes: only the rows in view are in the document, so ten thousand cost no more than ten.

const ROWS_BEYOND_VIEW = 6;

// onChoose(episode) is called when a row is chosen. Returns {element, show, choose}.
function makeRolloutList(run, onChoose) {
  const space = make("div", { class: "list-space", role: "presentation" });
  const element = make("div", { class: "list", id: "rollout-list", role: "listbox", tabindex: 0, "aria-label": "Rollouts" }, space);
  const list = { run, element, space, episodes: [], chosen: -1, rowHeight: 56, rewardRange: rewardRange(run.index), rows: new Map() };
  const drawSoon = () => requestAnimationFrame(() => drawRows(list));
  element.addEventListener("scroll", drawSoon, { passive: true });
  new ResizeObserver(drawSoon).observe(element);
  element.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) onChoose(Number(row.dataset.episode));
  });
  element.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(element.clientHeight / list.rowHeight) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    list.move(moves[event.key]);
  });
  list.show = (episodes) => showEpisodes(list, episodes);
  list.choose = (episode) => chooseRow(list, episode);
  list.move = (by) => {
    const place = list.episodes.indexOf(list.chosen);
    const next = Math.min(Math.max(place < 0 ? 0 : place + by, 0), list.episodes.length - 1);
    if (list.episodes.length > 0) onChoose(list.episodes[next]);
  };
  return list;
}

function rewardRange(index) {
  let [low, high] = [Infinity, -Infinity];
  for (const reward of index.columns.reward) {
    if (reward === null) continue;
    low = Math.min(low, reward);
    high = Math.max(high, reward);
  }
  return low < high ? [low, high] : [0, 1];
}

function showEpisodes(list, episodes) {
  list.episodes = episodes;
  list.rows.clear();
  const empty = make("p", { class: "empty-list" }, "No rollout fits these filters.");
  list.space.replaceChildren(...(episodes.length === 0 ? [empty] : []));
  list.space.style.height = `${Math.max(episodes.length * list.rowHeight, 1)}px`;
  drawRows(list);
}

function chooseRow(list, episode) {
  list.chosen = episode;
  const place = list.episodes.indexOf(episode);
  if (place >= 0) {
    const [top, bottom] = [place * list.rowHeight, (place + 1) * list.rowHeight];
    if (top < list.element.scrollTop) list.element.scrollTop = top;
    else if (bottom > list.element.scrollTop + list.element.clientHeight) list.element.scrollTop = bottom - list.element.clientHeight;
  }
  drawRows(list);
}

function drawRows(list) {
  const { element, space, episodes, rowHeight, rows } = list;
  const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - ROWS_BEYOND_VIEW);
  const last = Math.min(episodes.length, Math.ceil((element.scrollTop + element.clientHeight) / rowHeight) + ROWS_BEYOND_VIEW);
  for (const [place, row] of rows) {
    if (place < first || place >= last) {
      row.remove();
      rows.delete(place);
    }
  }
  for (let place = first; place < last; place += 1) {
    if (rows.has(place)) continue;
    const row = makeRow(list, episodes[place], place);
    rows.set(place, row);
    space.append(row);
  }
  for (const row of rows.values()) row.setAttribute("aria-selected", String(Number(row.dataset.episode) === list.chosen));
  element.setAttribute("aria-activedescendant", list.chosen >= 0 ? `row-${list.chosen}` : "");
}

function makeRow(list, i, place) {
  const { columns, files } = list.run.index;
  const file = files[columns.file[i]];
  const flags = columns.flags[i];
  const [low, high] = list.rewardRange;
  const fill = make("span");
  fill.style.width = `${columns.reward[i] === null ? 0 : (100 * (columns.reward[i] - low)) / (high - low)}%`;
  const row = make("div", { class: "row", role: "option", id: `row-${i}`, "data-episode": i, "aria-setsize": list.episodes.length, "aria-posinset": place + 1 },
    make("div", { class: "row-head" },
      make("span", { class: "tiny-bar", "aria-hidden": "true" }, fill),
      make("b", {}, flags & IS_FAULT ? "no reward" : numberText(columns.reward[i], 3)),
      columns.advantage[i] === null ? null : make("span", {}, `adv ${signedText(columns.advantage[i], 2)}`),
      make("span", { class: "row-spacer" }),
      flags & IS_FAULT ? make("span", { class: "badge badge-bad" }, "fault") : flags & IS_CUT ? make("span", { class: "badge badge-warn" }, "cut") : null,
      make("span", {}, `${file.set === "train" ? "" : `${file.set} `}${file.iteration} · ${columns.group[i]}.${columns.member[i] < 0 ? "–" : columns.member[i]}`)),
    make("div", { class: "row-text" }, columns.snippet[i] || "(empty reply)"));
  row.style.top = `${place * list.rowHeight}px`;
  return row;
}
