// The run's data: JSON, compressed (zlib) and in base64, in script elements that the browser does not run.
// `core` is unpacked at the start; the index of the episodes next; a chunk of texts or tokens when it is needed.

const KEPT_CHUNKS = 48;
const chunkCache = new Map();

async function unpack(name) {
  const block = byId(`data-${name}`);
  if (block === null) return null;
  const binary = atob(block.textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// kind: "texts" or "tokens". The chunks used last are kept.
function loadChunk(kind, iFile) {
  const name = `${kind}-${iFile}`;
  const loaded = chunkCache.get(name) ?? unpack(name);
  chunkCache.delete(name);
  chunkCache.set(name, loaded);
  if (chunkCache.size > KEPT_CHUNKS) chunkCache.delete(chunkCache.keys().next().value);
  return loaded;
}

// One episode with everything known about it.
async function loadEpisode(run, i) {
  const iFile = run.index.columns.file[i];
  const place = i - run.index.files[iFile].first;
  const [texts, tokens] = await Promise.all([loadChunk("texts", iFile), loadChunk("tokens", iFile)]);
  const { turns, parts, fault, attempt } = texts[place];
  return { i, parts, fault, attempt, turns: turns.map((turn, k) => ({ ...turn, tokens: tokens[place][k] })) };
}

// The metric columns of a stage as points: only the steps that have the metric.
function pointsOf(stage, key) {
  const column = stage.metrics.columns[key];
  if (column === undefined) return [];
  const points = [];
  for (let i = 0; i < column.length; i += 1) {
    if (column[i] !== null) points.push({ x: stage.metrics.steps[i], y: column[i] });
  }
  return points;
}

function lastValue(stage, key) {
  return pointsOf(stage, key).at(-1)?.y ?? null;
}
