// The last minutes, from the counts of each second that the server keeps. Whatever is shown is computed here.

export class History {
  points = [];
  #started = null;

  get last() {
    return this.points.at(-1)?.time ?? 0;
  }

  // Another start is another server: its counts are not those before it.
  add({ started, history, num_points }) {
    if (started !== this.#started) this.points = [];
    this.#started = started;
    const later = history.filter((point) => point.time > this.last);
    this.points = [...this.points, ...later].slice(-num_points);
  }

  // The points of the last seconds, up to the newest.
  latest(seconds) {
    return this.points.filter((point) => point.time > this.last - seconds);
  }

  count(seconds, of) {
    return sum(this.latest(seconds).map(of));
  }

  rate(seconds, of) {
    const found = this.latest(seconds);
    return found.length ? sum(found.map(of)) / sum(found.map((point) => point.seconds)) : 0;
  }

  latency(seconds, share) {
    return quantile(this.latest(seconds), share);
  }
}

export const sum = (values) => values.reduce((total, value) => total + value, 0);

// All numbers in counts, however they are nested.
export function total(counts) {
  if (counts === undefined) return 0;
  return typeof counts === "number" ? counts : sum(Object.values(counts).map(total));
}

// Seconds within which this share of the requests of these points was answered; null where there was none.
export function quantile(points, share) {
  const counts = new Map();
  for (const point of points) {
    for (const [microseconds, count] of Object.entries(point.latency_us)) {
      counts.set(Number(microseconds), (counts.get(Number(microseconds)) ?? 0) + count);
    }
  }
  let left = share * sum([...counts.values()]);
  for (const [microseconds, count] of [...counts].sort(([one], [other]) => one - other)) {
    left -= count;
    if (left <= 0) return microseconds / 1e6;
  }
  return null;
}
