// A reply token by token, coloured by advantage, logprob or ratio; the numbers of a token in a tooltip.

const COLOUR_MODES = [["plain", "plain"], ["advantage", "advantage"], ["logprob", "logprob"], ["ratio", "ratio"]];
// The logprob at which the colour is full: a token of probability 0.7 %.
const FULL_LOGPROB = -5;

// How the values of the shown episodes become colours: what is full colour depends on the largest among them.
function makeColouring(mode, episodes) {
  const sizes = { advantage: 1e-9, ratio: 0.02 };
  for (const { turns } of episodes) {
    for (const { tokens } of turns) {
      for (let t = 0; t < tokens.ids.length; t += 1) {
        sizes.advantage = Math.max(sizes.advantage, Math.abs(advantageAt(tokens, t) ?? 0));
        sizes.ratio = Math.max(sizes.ratio, Math.abs(logRatioAt(tokens, t) ?? 0));
      }
    }
  }
  return { mode, sizes, hasRatio: episodes.some(({ turns }) => turns.some(({ tokens }) => tokens.log_ratios !== null)) };
}

function advantageAt(tokens, t) {
  return Array.isArray(tokens.advantages) ? tokens.advantages[t] : tokens.advantages;
}

// log of trainer over sampler probability; null where the trainer's is not recorded.
function logRatioAt(tokens, t) {
  return tokens.log_ratios?.[t] ?? null;
}

// -1 to 1: full colour down, none, full colour up; null where there is no value.
function toneOf(colouring, tokens, t) {
  const { mode, sizes } = colouring;
  if (mode === "advantage") return scaled(advantageAt(tokens, t), sizes.advantage);
  if (mode === "ratio") return scaled(logRatioAt(tokens, t), sizes.ratio);
  if (mode === "logprob") return tokens.sampler[t] === null ? null : -Math.min(1, tokens.sampler[t] / FULL_LOGPROB);
  return null;
}

function scaled(value, size) {
  return value === null || value === undefined ? null : Math.max(-1, Math.min(1, value / size));
}

function paint(element, tone) {
  if (tone === null || Math.abs(tone) < 0.005) return;
  const colour = tone < 0 ? "--token-down" : "--token-up";
  element.style.backgroundColor = `color-mix(in srgb, var(${colour}) ${Math.round(Math.abs(tone) * 62)}%, transparent)`;
}

// The reply of a turn. Without recorded token texts it is one piece, coloured only where all its tokens have one value.
function makeReply(turn, colouring, query) {
  const { response, tokens } = turn;
  const ranges = matchRanges(response, query);
  const reply = make("div", { class: "response", tabindex: 0, role: "group", "aria-label": "Reply; arrow keys go through its tokens" });
  if (tokens.lengths === null) {
    reply.append(...markedText(response, ranges));
    if (colouring.mode === "advantage" && !Array.isArray(tokens.advantages)) paint(reply, toneOf(colouring, tokens, 0));
    return reply;
  }
  let [start, iRange] = [0, 0];
  for (let t = 0; t < tokens.ids.length; t += 1) {
    const end = start + tokens.lengths[t];
    while (iRange < ranges.length && ranges[iRange][1] <= start) iRange += 1;
    const isMatch = iRange < ranges.length && ranges[iRange][0] < end && end > start;
    const token = makeToken(response.slice(start, end), t, isMatch);
    paint(token, toneOf(colouring, tokens, t));
    reply.append(token);
    start = end;
  }
  listenToTokens(reply, turn);
  return reply;
}

function makeToken(text, t, isMatch) {
  const kinds = ["token"];
  if (text === "") kinds.push("is-partial");
  if (text.includes("\n")) kinds.push("has-break");
  if (/^<\|[^|]+\|>$/.test(text)) kinds.push("is-special");
  if (isMatch) kinds.push("is-match");
  return make("span", { class: kinds.join(" "), "data-token": t }, text);
}

// Text nodes, with <mark> around the ranges and special tokens dimmed.
function markedText(text, ranges) {
  const pieces = [];
  let at = 0;
  for (const [start, end] of ranges) {
    pieces.push(...dimmedText(text.slice(at, start)), make("mark", {}, text.slice(start, end)));
    at = end;
  }
  return [...pieces, ...dimmedText(text.slice(at))];
}

function dimmedText(text) {
  return text.split(/(<\|[^|<>]{1,40}\|>)/).filter((piece) => piece !== "").map((piece) => (/^<\|[^|]+\|>$/.test(piece) ? make("span", { class: "special" }, piece) : piece));
}

function listenToTokens(reply, turn) {
  const show = (token, x, y) => showTooltip(x, y, makeFacts(tokenFacts(turn, Number(token.dataset.token), token.textContent)));
  const activate = (token) => {
    reply.querySelector(".is-active")?.classList.remove("is-active");
    if (!token) return;
    token.classList.add("is-active");
    const { left, bottom } = token.getBoundingClientRect();
    show(token, left - 14, bottom - 12);
    announce(byId("tooltip").textContent);
  };
  reply.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".token");
    if (token) show(token, event.clientX, event.clientY);
  });
  reply.addEventListener("pointerleave", hideTooltip);
  reply.addEventListener("blur", () => { activate(null); hideTooltip(); });
  reply.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
    const active = reply.querySelector(".is-active");
    const next = event.key === "ArrowRight" ? (active ? active.nextElementSibling : reply.firstElementChild) : active?.previousElementSibling;
    if (next) activate(next);
    event.preventDefault();
    event.stopPropagation();
  });
}

function tokenFacts({ tokens }, t, text) {
  const logRatio = logRatioAt(tokens, t);
  const sampler = tokens.sampler[t];
  const advantage = advantageAt(tokens, t);
  return [
    ["token", make("code", {}, text === "" ? "part of the next character" : JSON.stringify(text))],
    ["id", String(tokens.ids[t])],
    ["sampler", sampler === null ? "not recorded" : `${numberText(sampler)} (${percentText(Math.exp(sampler), 2)})`],
    ["trainer", logRatio === null || sampler === null ? "not recorded" : numberText(sampler + logRatio)],
    ["ratio", logRatio === null ? "not recorded" : numberText(Math.exp(logRatio), 5)],
    ["advantage", advantage === null || advantage === undefined ? "none (not trained on)" : signedText(advantage, 4)],
  ];
}

function makeColourKey(colouring) {
  const { mode, sizes, hasRatio } = colouring;
  const key = (low, kind, high) => make("span", { class: "colour-key" }, low, make("span", { class: `ramp ${kind}`, "aria-hidden": "true" }), high);
  if (mode === "advantage") {
    if (sizes.advantage <= 1e-9) return make("span", { class: "colour-key" }, "advantages not recorded, or all zero");
    return key(`−${numberText(sizes.advantage, 3)}`, "ramp-both", `+${numberText(sizes.advantage, 3)}`);
  }
  if (mode === "logprob") return key("certain", "ramp-one", "probability under 1 %");
  if (mode === "ratio") {
    if (!hasRatio) return make("span", { class: "colour-key" }, "trainer logprobs not recorded for these replies");
    return key(numberText(Math.exp(-sizes.ratio), 3), "ramp-both", `${numberText(Math.exp(sizes.ratio), 3)} trainer / sampler`);
  }
  return make("span", { class: "colour-key" });
}
