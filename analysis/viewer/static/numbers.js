/** How numbers read; what the server could not compute is a dash. */

const MISSING = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

/** Three decimals, more for what would read as zero. */
export function shown(value, digits = 3) {
  if (!known(value)) return MISSING;
  const small = value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits;
  return (small ? value.toExponential(1) : value.toFixed(digits)).replace("-", "−");
}

export function signed(value, digits = 3) {
  return known(value) && value > 0 ? `+${shown(value, digits)}` : shown(value, digits);
}

/** A probability as a percentage. */
export function percent(value) {
  if (!known(value)) return MISSING;
  const hundredth = 100 * value;
  if (hundredth !== 0 && hundredth < 0.01) return `${hundredth.toExponential(0)}\u00a0%`;
  return `${hundredth.toFixed(hundredth < 1 ? 2 : 1)}\u00a0%`;
}

export function milliseconds(value) {
  return known(value) ? `${value.toFixed(value < 10 ? 1 : 0)} ms` : MISSING;
}

export function rankOf(rank) {
  return rank === null || rank === undefined ? MISSING : `${rank}`;
}
