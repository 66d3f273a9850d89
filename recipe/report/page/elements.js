// Elements of the page. Text reaches the document as text nodes only: what a model wrote can never become markup.

const SVG = "http://www.w3.org/2000/svg";

// An HTML element. attributes: `class`, `on` ({event: function}), properties given as booleans, everything else as text.
// children: elements, strings, numbers, or lists of them; null and false are left out.
function make(tag, attributes = {}, ...children) {
  return furnish(document.createElement(tag), attributes, children);
}

// An SVG element, in the same way.
function draw(tag, attributes = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), attributes, children);
}

function furnish(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

// A section of the page with its heading.
function makeSection(id, title, lead, ...children) {
  const heading = make("h2", { id: `${id}-title` }, title);
  const head = make("div", { class: "section-head" }, heading, lead ? make("p", {}, lead) : null);
  return make("section", { class: "section", id, "aria-labelledby": `${id}-title`, tabindex: -1 }, head, ...children);
}

// A definition list; rows whose value is missing are left out.
function makeFacts(rows) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", { class: "facts" }, shown.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// A table. columns: {name, isNumber, isBreakable, isWide: only on wide screens}; rows: lists of cells, the first of which heads its row.
function makeTable(columns, rows, caption) {
  const classOf = (column) => (column.isNumber ? "number" : column.isBreakable ? "breakable" : column.isWide ? "wide-only" : null);
  const head = make("tr", {}, columns.map((column) => make("th", { scope: "col", class: classOf(column) }, column.name)));
  const body = rows.map((cells) =>
    make("tr", {}, cells.map((cell, i) =>
      make(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : null, class: classOf(columns[i]) }, cell ?? ""))));
  return make("div", { class: "scroll-x" },
    make("table", {}, make("caption", { class: "visually-hidden" }, caption), make("thead", {}, head), make("tbody", {}, body)));
}

// Buttons of which one is pressed. choices: [value, label]; onChange is called with the value.
function makeSegmented(label, choices, chosen, onChange) {
  const buttons = choices.map(([value, text]) =>
    make("button", { type: "button", "data-value": value, on: { click: () => { set(value); onChange(value); } } }, text));
  function set(value) {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
  set(chosen);
  const element = make("div", { class: "segmented", role: "group", "aria-label": label }, buttons);
  return { element, set };
}

function makeCopyButton(text, what) {
  const button = make("button", { type: "button", class: "copy-button", "aria-label": `Copy ${what}` }, "copy");
  button.addEventListener("click", async () => {
    const isCopied = await copyText(text);
    button.textContent = isCopied ? "copied" : "press Ctrl+C";
    announce(isCopied ? `${what} copied` : `${what} could not be copied`);
    setTimeout(() => { button.textContent = "copy"; }, 1600);
  });
  return button;
}

// navigator.clipboard is missing where the page is not served securely; selecting is what is left then.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "visually-hidden", readonly: true }, text);
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}

// Said by screen readers, seen by nobody.
function announce(text) {
  byId("announcer").textContent = text;
}

function showTooltip(x, y, ...content) {
  const tooltip = byId("tooltip");
  tooltip.replaceChildren(...content);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), window.innerWidth - width - 8);
  const top = y + 18 + height > window.innerHeight ? y - height - 12 : y + 18;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${Math.max(8, top)}px`;
}

function hideTooltip() {
  byId("tooltip").hidden = true;
}
