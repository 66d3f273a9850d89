// Search in the text of prompts and replies. The texts are unpacked file by file the first time, then kept in lower case.

const lowerTexts = new Map();
let latestSearch = 0;

// Calls onProgress(matches so far, share done) now and then; resolves to the matches, or to null where a newer search began.
async function searchEpisodes(run, query, onProgress) {
  latestSearch += 1;
  const search = latestSearch;
  const needle = query.toLowerCase();
  const { index, prompts } = run;
  run.lowerPrompts ??= prompts.map((prompt) => prompt.toLowerCase());
  const isPromptMatch = run.lowerPrompts.map((prompt) => prompt.includes(needle));
  const matches = new Set();
  let pausedAt = performance.now();
  for (const [iFile, file] of index.files.entries()) {
    const texts = await lowerTextsOf(iFile);
    if (search !== latestSearch) return null;
    for (let k = 0; k < file.count; k += 1) {
      if (texts[k].includes(needle) || isPromptMatch[index.columns.prompt[file.first + k]]) matches.add(file.first + k);
    }
    if (performance.now() - pausedAt > 60) {
      onProgress(matches, (iFile + 1) / index.files.length);
      await new Promise((resolve) => { setTimeout(resolve); });
      pausedAt = performance.now();
    }
  }
  return search === latestSearch ? matches : null;
}

function cancelSearch() {
  latestSearch += 1;
}

async function lowerTextsOf(iFile) {
  if (!lowerTexts.has(iFile)) {
    const episodes = await unpack(`texts-${iFile}`);
    lowerTexts.set(iFile, episodes.map(({ turns, fault }) =>
      [...turns.flatMap((turn) => [turn.given ?? "", turn.response]), fault?.error ?? ""].join("\n").toLowerCase()));
  }
  return lowerTexts.get(iFile);
}

// Start and end of every place where `query` stands in `text`, whatever the case.
function matchRanges(text, query) {
  if (!query) return [];
  const [hay, needle] = [text.toLowerCase(), query.toLowerCase()];
  const ranges = [];
  for (let at = hay.indexOf(needle); at >= 0 && ranges.length < 500; at = hay.indexOf(needle, at + needle.length)) {
    ranges.push([at, at + needle.length]);
  }
  return ranges;
}
