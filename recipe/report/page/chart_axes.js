// Scales and ticks, linear and logarithmic. Pure arithmetic.

// A function from values to pixels, with its inverse. On a log scale, values that are not positive have no place (null).
function makeScale(low, high, start, end, isLog) {
  const forward = isLog ? Math.log10 : (value) => value;
  const backward = isLog ? (value) => 10 ** value : (value) => value;
  const [from, to] = [forward(low), forward(high)];
  const span = to - from || 1;
  const scale = (value) => (isLog && value <= 0 ? null : start + ((forward(value) - from) / span) * (end - start));
  scale.invert = (pixel) => backward(from + ((pixel - start) / (end - start)) * span);
  return scale;
}

// Round numbers that span the range, about `count` of them.
function ticksOf(low, high, count, isLog) {
  if (isLog) return logTicks(low, high, count);
  const step = roundStep((high - low) / Math.max(count, 1));
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) {
    ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  }
  return ticks;
}

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const size = rough / power;
  return (size <= 1 ? 1 : size <= 2 ? 2 : size <= 5 ? 5 : 10) * power;
}

function logTicks(low, high, count) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.max(1, Math.ceil((last - first) / count));
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += every) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

// The range of the values with a little air; never empty.
function rangeOf(values, isLog) {
  const usable = values.filter((value) => Number.isFinite(value) && (!isLog || value > 0));
  if (usable.length === 0) return isLog ? [0.1, 1] : [0, 1];
  let [low, high] = [Infinity, -Infinity];
  for (const value of usable) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (isLog) return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  const air = low === high ? Math.max(Math.abs(low) * 0.1, 0.5e-6, low === 0 ? 0.5 : 0) : (high - low) * 0.06;
  return [low - air, high + air];
}

// Labels short enough for an axis, and different from each other.
function tickText(value, ticks, isLog) {
  if (isLog) return numberText(value, 2);
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.abs(value) || 1;
  const size = Math.max(...ticks.map(Math.abs));
  if (value !== 0 && (size >= 1e6 || step < 1e-4)) return value.toExponential(1).replace("-", "−");
  const decimals = Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
}

// Exponential moving average; weight 0 leaves the points as they are. The first values are not pulled towards zero.
function smoothed(points, weight) {
  if (weight === 0) return points;
  let [sum, norm] = [0, 0];
  return points.map(({ x, y }) => {
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    return { x, y: sum / norm };
  });
}
