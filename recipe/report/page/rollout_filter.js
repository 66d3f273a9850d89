// Which episodes are listed, and in which order: on the index alone, so that it takes milliseconds.

const IS_CUT = 1;
const IS_FAULT = 2;
const HAS_TRAINER = 4;

function emptyFilter() {
  return { set: "", fromStep: null, toStep: null, minReward: null, maxReward: null, tag: "", env: "", onlyCut: false, onlyFault: false, prompt: null, query: "", sort: "order" };
}

// matches: a Set of episodes that the search found, or null where nothing is searched for.
function filteredEpisodes(index, filter, matches) {
  const { columns, files } = index;
  const isShownFile = files.map((file) =>
    (filter.set === "" || file.set === filter.set)
    && (filter.fromStep === null || file.iteration >= filter.fromStep)
    && (filter.toStep === null || file.iteration <= filter.toStep));
  const [iTag, iEnv] = [index.tags.indexOf(filter.tag), index.environments.indexOf(filter.env)];
  const wantedFlags = (filter.onlyCut ? IS_CUT : 0) | (filter.onlyFault ? IS_FAULT : 0);
  const found = [];
  for (let i = 0; i < index.num_episodes; i += 1) {
    if (!isShownFile[columns.file[i]]) continue;
    if ((columns.flags[i] & wantedFlags) !== wantedFlags) continue;
    if (filter.minReward !== null && !(columns.reward[i] !== null && columns.reward[i] >= filter.minReward)) continue;
    if (filter.maxReward !== null && !(columns.reward[i] !== null && columns.reward[i] <= filter.maxReward)) continue;
    if (filter.prompt !== null && columns.prompt[i] !== filter.prompt) continue;
    if (filter.env !== "" && columns.env[i] !== iEnv) continue;
    if (filter.tag !== "" && !columns.tags[i].includes(iTag)) continue;
    if (matches !== null && !matches.has(i)) continue;
    found.push(i);
  }
  return sortedEpisodes(index, found, filter.sort);
}

// sort: "order", or a column with "-" before it for the highest first. Episodes without a value come last.
function sortedEpisodes(index, episodes, sort) {
  if (sort === "order") return episodes;
  const name = sort.replace(/^-/, "");
  const column = index.columns[name] ?? index.metrics[name];
  if (column === undefined) return episodes;
  const sign = sort.startsWith("-") ? -1 : 1;
  return episodes.sort((a, b) => {
    if (column[a] === null || column[b] === null) return (column[a] === null) - (column[b] === null) || a - b;
    return sign * (column[a] - column[b]) || a - b;
  });
}

// The environments' metrics that say anything: not zero for every episode.
function tellingMetrics(index) {
  index.tellingMetrics ??= Object.keys(index.metrics).filter((name) => index.metrics[name].some((value) => value));
  return index.tellingMetrics;
}

// All episodes of the group that an episode belongs to.
function groupOf(index, i) {
  const { columns, files } = index;
  const { first, count } = files[columns.file[i]];
  const members = [];
  for (let k = first; k < first + count; k += 1) if (columns.group[k] === columns.group[i]) members.push(k);
  return members.sort((a, b) => columns.member[a] - columns.member[b] || a - b);
}

// The prompt's groups at every step where it was played: [{file, episodes, meanReward}], in order.
function promptHistory(index, prompt) {
  const byFile = new Map();
  for (let i = 0; i < index.num_episodes; i += 1) {
    if (index.columns.prompt[i] !== prompt) continue;
    if (!byFile.has(index.columns.file[i])) byFile.set(index.columns.file[i], []);
    byFile.get(index.columns.file[i]).push(i);
  }
  return [...byFile].map(([iFile, episodes]) => {
    const rewards = episodes.map((i) => index.columns.reward[i]).filter((reward) => reward !== null);
    const meanReward = rewards.length > 0 ? rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length : null;
    return { file: index.files[iFile], episodes, meanReward };
  });
}

// The part of a link that names an episode, and the way back; -1 where there is none.
function episodeName(index, i) {
  const { columns, files } = index;
  const file = files[columns.file[i]];
  return [file.set, file.iteration, columns.group[i], columns.member[i]].join(".");
}

function episodeByName(index, name) {
  const [set, ...numbers] = name.split(".");
  const [iteration, group, member] = numbers.map(Number);
  for (const file of index.files) {
    if (file.set !== set || file.iteration !== iteration) continue;
    for (let i = file.first; i < file.first + file.count; i += 1) {
      if (index.columns.group[i] === group && index.columns.member[i] === member) return i;
    }
  }
  return -1;
}
