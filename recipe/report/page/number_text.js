// Numbers as text for people.

const MISSING = "–";

// About `digits` significant digits: 0.9141, 12.35, 1,250, 2.00e−5. Whole numbers stay whole.
function numberText(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.5 * 10 ** -digits || size >= 1e7)) return value.toExponential(Math.min(digits - 1, 2)).replaceAll("-", "−");
  const whole = size < 1 ? 0 : Math.floor(Math.log10(size)) + 1;
  const decimals = Number.isInteger(value) ? 0 : Math.max(0, digits - whole);
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
}

// Three decimals, as the pipeline prints its table.
function fixedText(value) {
  return typeof value === "number" ? value.toFixed(3).replace("-", "−") : "";
}

// With its sign, as advantages and changes are read.
function signedText(value, digits = 3) {
  const text = numberText(value, digits);
  return typeof value === "number" && value > 0 ? `+${text}` : text;
}

function percentText(share, digits = 1) {
  return typeof share === "number" ? `${(100 * share).toFixed(digits).replace("-", "−")} %` : MISSING;
}

function durationText(seconds) {
  if (typeof seconds !== "number") return null;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function countText(number, singular, plural = `${singular}s`) {
  return `${number.toLocaleString("en-US")} ${number === 1 ? singular : plural}`;
}

// "num_pairs" as "num pairs".
function wordsOf(key) {
  return key.replaceAll("_", " ").replaceAll("/", " / ");
}
