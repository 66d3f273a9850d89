// The frame of the page: links to the sections, theme, keys, and the dialog that names them.

const KEYS = [
  ["j", "k", "next, previous rollout of the list"], ["[", "]", "the same prompt one step earlier, later"],
  ["/", null, "search prompts and replies"], ["c", null, "change what colours the tokens"], ["a", null, "the same prompt across steps"],
  ["t", null, "light or dark"], ["←", "→", "in a chart: steps; in a reply: tokens"], ["Esc", null, "zoom out of a chart, leave a field"],
];
const THEMES = ["auto", "light", "dark"];
const THEME_STORE = "run-report-theme";

function makeSectionLinks(sections) {
  const links = sections.map((section) => make("a", { href: `#${section.id}` }, section.id === "overview" ? "Overview" : section.querySelector("h2").textContent));
  byId("section-links").replaceChildren(...links.map((link) => make("li", {}, link)));
  const visible = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) visible.add(entry.target);
      else visible.delete(entry.target);
    }
    const current = sections.find((section) => visible.has(section));
    for (const [i, link] of links.entries()) link.setAttribute("aria-current", String(sections[i] === current));
    const link = links[sections.indexOf(current)];
    const strip = link?.closest("nav");
    if (strip) strip.scrollLeft = link.offsetLeft - strip.offsetLeft - (strip.clientWidth - link.offsetWidth) / 2;
  }, { rootMargin: "-20% 0px -60% 0px" });
  for (const section of sections) observer.observe(section);
}

// A page opened from a file may be refused storage; then the choice lasts as long as the page.
function storedTheme(value) {
  try {
    if (value !== undefined) localStorage.setItem(THEME_STORE, value);
    return localStorage.getItem(THEME_STORE);
  } catch {
    return null;
  }
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const button = byId("theme-button");
  button.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  button.setAttribute("aria-label", `Theme: ${theme}`);
}

function startThemes() {
  let theme = THEMES.includes(storedTheme()) ? storedTheme() : "auto";
  setTheme(theme);
  const next = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    storedTheme(theme);
    setTheme(theme);
  };
  byId("theme-button").addEventListener("click", next);
  return next;
}

function makeHelp() {
  const rows = KEYS.map(([first, second, what]) => [make("span", {}, make("kbd", {}, first), second ? " " : "", second ? make("kbd", {}, second) : ""), what]);
  const close = make("button", { type: "button", class: "tool-button" }, "Close");
  const dialog = make("dialog", { "aria-labelledby": "help-title" }, make("h2", { id: "help-title" }, "Keys"), makeFacts(rows), close);
  close.addEventListener("click", () => dialog.close());
  byId("help-button").addEventListener("click", () => dialog.showModal());
  document.body.append(dialog);
  return dialog;
}

function isTyping(target) {
  return target.matches?.("input, select, textarea") ?? false;
}

function startKeys(run, nextTheme) {
  const dialog = makeHelp();
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || dialog.open) return;
    const { explorer } = run;
    const modes = COLOUR_MODES.map(([mode]) => mode);
    const actions = {
      "?": () => dialog.showModal(),
      t: nextTheme,
      ...(explorer && {
        "/": () => { byId("rollouts").scrollIntoView(); explorer.filters.search.focus({ preventScroll: true }); },
        j: () => explorer.list.move(1),
        k: () => explorer.list.move(-1),
        "]": () => moveStep(explorer, 1),
        "[": () => moveStep(explorer, -1),
        c: () => setColour(explorer, modes[(modes.indexOf(explorer.colour) + 1) % modes.length]),
        a: () => byId("across-button")?.click(),
      }),
    };
    if (event.key in actions) {
      event.preventDefault();
      actions[event.key]();
    }
  });
}
