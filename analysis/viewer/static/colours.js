/** Colours of numbers: white to blue; where there are negative ones too, orange to white to blue. */

const BLUES = [[255, 255, 255], [198, 219, 239], [107, 174, 214], [33, 113, 181], [8, 48, 107]];
const ORANGES = [[255, 255, 255], [253, 208, 162], [253, 141, 60], [217, 72, 1], [127, 39, 4]];

function mixed(ramp, strength) {
  const place = Math.min(1, Math.max(0, strength)) * (ramp.length - 1);
  const low = Math.min(Math.floor(place), ramp.length - 2);
  const between = (value, next) => Math.round(value + (place - low) * (next - value));
  return rgb(ramp[low].map((value, k) => between(value, ramp[low + 1][k])));
}

function rgb(colour) {
  return `rgb(${colour.join(",")})`;
}

export function blue(strength) {
  return mixed(BLUES, strength);
}

/** A scale for numbers between two: {low, high, colour(value), gradient}. */
export function scale(low, high) {
  if (low >= 0) {
    const start = high - low < 0.5 * high ? low : 0; // numbers that are all large differ above the least
    const colour = (value) => blue((value - start) / (high - start || 1));
    return { low: start, high, colour, gradient: gradient([BLUES]) };
  }
  const limit = Math.max(high, -low);
  const colour = (value) => (value < 0 ? mixed(ORANGES, -value / limit) : blue(value / limit));
  return { low: -limit, high: limit, colour, gradient: gradient([[...ORANGES].reverse(), BLUES]) };
}

function gradient(ramps) {
  return `linear-gradient(to right, ${ramps.flat().map(rgb).join(",")})`;
}
