// Numbers and times for people.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const formatCount = (value) => count.format(value);
export const formatNumber = (value) => (Math.abs(value) >= 1e6 ? value.toExponential(1) : short.format(value));
export const formatRate = (value) => (value >= 100 ? count.format(value) : short.format(value));
export const formatShare = (value) => `${short.format(100 * value)} %`;
export const formatTime = (seconds) => new Date(1000 * seconds).toLocaleTimeString();
export const formatDate = (seconds) => new Date(1000 * seconds).toLocaleString();

export function formatLatency(seconds) {
  return seconds < 1e-3 ? `${short.format(1e6 * seconds)} µs` : `${short.format(1e3 * seconds)} ms`;
}

export function formatSpan(seconds) {
  if (seconds < 90) return `${count.format(seconds)} s`;
  if (seconds < 5400) return `${count.format(seconds / 60)} min`;
  return seconds < 172800 ? `${short.format(seconds / 3600)} h` : `${count.format(seconds / 86400)} days`;
}
