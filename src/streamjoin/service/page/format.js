/* Numbers, durations and times as people read them. */

const SMALL = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const TINY = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const LARGE = new Intl.NumberFormat("en", { notation: "compact", minimumSignificantDigits: 2, maximumSignificantDigits: 3 });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export function count(value) {
  if (missing(value)) return "–";
  const size = Math.abs(value);
  if (size >= 10_000) return LARGE.format(value);
  if (size > 0 && size < 1) return TINY.format(value);
  return size < 100 && !Number.isInteger(value) ? SMALL.format(value) : WHOLE.format(value);
}

export const whole = (value) => (missing(value) ? "–" : WHOLE.format(value));
export const rate = (value) => (missing(value) ? "–" : `${count(value)}/s`);
export const percent = (value) => (missing(value) ? "–" : `${WHOLE.format(value * 100)} %`);
export const share = (value) => (missing(value) ? "–" : `${SMALL.format(value * 100)} %`);

export function milliseconds(value) {
  if (missing(value)) return "–";
  if (value >= 10_000) return `${SMALL.format(value / 1000)} s`;
  return value < 10 ? `${SMALL.format(value)} ms` : `${WHOLE.format(value)} ms`;
}

export function age(seconds) {
  if (missing(seconds)) return "–";
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** How far a stream is behind, or ahead of the clock. */
export function lag(seconds) {
  if (missing(seconds)) return "–";
  const size = Math.abs(seconds);
  return `${seconds < 0 ? "−" : ""}${size < 1 ? `${Math.round(size * 1000)} ms` : age(size)}`;
}

export function bytes(value) {
  if (missing(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (value >= 1024 && step < units.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${value < 100 && step ? SMALL.format(value) : WHOLE.format(value)} ${units[step]}`;
}

export const clock = (unix) => CLOCK.format(new Date(unix * 1000));
export const plural = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;

/** A message as one sentence among others. */
export const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}`.replace(/[.!?]?$/, (end) => end || ".") : "");

/** "a", "a and b", "a, b and 3 more". */
export function names(list, most = 3) {
  const shown = list.length > most ? list.slice(0, most - 1) : list;
  const rest = list.length - shown.length;
  const parts = rest ? [...shown, `${rest} more`] : shown;
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

/** What an axis should reach: not ruled by a few outliers, which are shown as such. */
export function usual(values) {
  const sorted = values.filter((value) => value > 0).sort((a, b) => a - b);
  if (!sorted.length) return 0;
  const most = sorted.at(-1);
  const common = sorted[Math.min(sorted.length - 1, Math.floor(0.95 * sorted.length))];
  return most > 3 * common ? 1.5 * common : most;
}

/** The upper end of an axis and its steps, in round numbers. */
export function axis(most, steps = 3) {
  const rough = Math.max(most, 1e-9) / steps;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = Array.from({ length: Math.ceil(most / step) + 1 }, (_, index) => index * step);
  return { top: ticks.at(-1) || step, ticks };
}
