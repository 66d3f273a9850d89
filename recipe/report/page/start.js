// From the packed data to the page. The overview and the curves come first; the rollouts follow once the page is shown.

const DATA_VERSION = 1;

async function readRun() {
  const core = await unpack("core");
  if (core.version !== DATA_VERSION) throw new Error(`data of version ${core.version}, where this page reads version ${DATA_VERSION}`);
  const [index, prompts] = await Promise.all([unpack("index"), unpack("prompts")]);
  return { core, index, prompts, explorer: null, showIteration: () => {} };
}

async function followLink(run) {
  const [id, values] = location.hash.slice(1).split(/\?(.*)/s);
  if (id !== "rollouts" || values === undefined || !run.explorer) return;
  await readLink(run.explorer, values);
  byId("rollouts").scrollIntoView({ behavior: "instant" });
}

// The marks are for benchmarks/report_speed.py.
async function startPage() {
  performance.mark("started");
  const nextTheme = startThemes();
  const run = await readRun();
  performance.mark("unpacked");
  const rollouts = makeRolloutSection(run);
  const sections = [makeOverviewSection(run), makeCurveSection(run), makeReportCardSection(run), makeDivergenceSection(run), rollouts, makeNotesSection(run)].filter(Boolean);
  byId("main").replaceChildren(...sections);
  makeSectionLinks(sections);
  startKeys(run, nextTheme);
  document.addEventListener("scroll", hideTooltip, { passive: true });
  if (run.explorer) {
    refresh(run.explorer);
    await followLink(run);
    run.explorer.canWriteLinks = true;
    window.addEventListener("hashchange", () => followLink(run));
  }
  if (location.hash.length > 1 && !location.hash.includes("?")) byId(location.hash.slice(1))?.scrollIntoView();
  performance.mark("interactive");
  document.documentElement.dataset.state = "ready";
}

startPage().catch((error) => {
  const isOld = typeof DecompressionStream === "undefined";
  byId("main").replaceChildren(make("p", { class: "loading", role: "alert" },
    isOld ? "This report needs a browser of 2023 or later." : `The report could not be drawn: ${error.message}`));
  throw error;
});
