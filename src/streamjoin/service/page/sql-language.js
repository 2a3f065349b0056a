/* The dialect as the editor sees it: tokens to colour, sources to know aliases by, and what may come at the caret. Pure functions. */

import { h } from "./dom.js";

export const KEYWORDS = ["SELECT", "FROM", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "ASOF", "MATCH_CONDITION", "NEAREST", "TOLERANCE", "WITHIN", "ON", "WHERE", "AND", "OR", "NOT", "AS", "BETWEEN", "IN", "LIKE", "ILIKE", "IS", "NULL", "TRUE", "FALSE", "CASE", "WHEN", "THEN", "ELSE", "END", "DISTINCT", "WINDOW", "RANGE", "PRECEDING", "FOLLOWING", "CURRENT", "INCLUDE", "EXCLUDE", "PREVAILING", "GROUP", "BY", "HAVING", "QUALIFY", "OVER", "PARTITION", "ORDER", "ASC", "DESC", "DATE", "TIMESTAMP", "INTERVAL"];
export const UNITS = ["MILLISECONDS", "SECONDS", "MINUTES", "HOURS", "DAYS", "ROWS", "UNITS"];
export const FUNCTIONS = ["ABS", "ACOS", "ASIN", "ATAN", "ATAN2", "CAST", "CEIL", "COALESCE", "CONCAT", "CONTAINS", "COS", "DATE_PART", "DATE_TRUNC", "DEGREES", "ENDS_WITH", "EPOCH", "EPOCH_MS", "EXP", "EXTRACT", "FLOOR", "GREATEST", "JSON_EXTRACT", "JSON_EXTRACT_STRING", "LEAST", "LEFT", "LENGTH", "LN", "LOG10", "LOG2", "LOWER", "LTRIM", "NULLIF", "POWER", "RADIANS", "REGEXP_EXTRACT", "REGEXP_MATCHES", "REGEXP_REPLACE", "REPLACE", "REVERSE", "RIGHT", "ROUND", "RTRIM", "SIGN", "SIN", "SPLIT_PART", "SQRT", "STARTS_WITH", "STRPOS", "SUBSTR", "TAN", "TO_TIMESTAMP", "TRIM", "TRUNC", "TRY_CAST", "UPPER"];
/** What summarises, and what cuts time into windows. */
export const SUMMARIES = ["ARG_MAX", "ARG_MIN", "AVG", "COUNT", "FIRST", "HOP", "LAST", "MAX", "MEDIAN", "MIN", "QUANTILE", "STDDEV_POP", "STDDEV_SAMP", "SUM", "TUMBLE", "VAR_POP", "VAR_SAMP"];

const TOKENS = /(?<space>\s+)|(?<comment>--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|(?<string>'(?:[^']|'')*(?:'|$))|(?<quoted>"(?:[^"]|"")*(?:"|$))|(?<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|(?<word>[\p{L}_][\p{L}\p{N}_]*)|(?<sign>[\s\S])/gu;
const WORDS = new Set([...KEYWORDS, ...UNITS, ...UNITS.map((unit) => unit.slice(0, -1))]);
const CALLED = new Set([...FUNCTIONS, ...SUMMARIES]);
const MOST = 8;

export function tokenize(text) {
  return [...text.matchAll(TOKENS)].map((match) => {
    let [kind] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    if (kind === "word") kind = WORDS.has(match[0].toUpperCase()) ? "keyword" : CALLED.has(match[0].toUpperCase()) ? "function" : "name";
    return { kind, text: match[0], start: match.index, end: match.index + match[0].length };
  });
}

const isName = (token) => token?.kind === "name" || token?.kind === "quoted" || token?.kind === "function";
const plain = (token) => (token.kind === "quoted" ? token.text.slice(1, -1).replaceAll('""', '"') : token.text);
const isWord = (token, word) => token?.kind === "keyword" && token.text.toUpperCase() === word;

/** A name as a query has to write it. */
export const quoted = (name) => (/^[\p{L}_][\p{L}\p{N}_]*$/u.test(name) && !WORDS.has(name.toUpperCase()) ? name : `"${name.replaceAll('"', '""')}"`);

/** Alias to stream, as FROM and JOIN say. */
export function sources(text, streams) {
  const tokens = tokenize(text).filter(({ kind }) => kind !== "space" && kind !== "comment");
  const found = new Map();
  tokens.forEach((token, index) => {
    if (!isWord(token, "FROM") && !isWord(token, "JOIN")) return;
    const stream = streams.find(({ name }) => isName(tokens[index + 1]) && name === plain(tokens[index + 1]));
    if (!stream) return;
    const alias = isWord(tokens[index + 2], "AS") ? tokens[index + 3] : tokens[index + 2];
    found.set(isName(alias) ? plain(alias) : stream.name, stream);
  });
  return found;
}

/** Spans of the text, with those of `wrong` underlined. */
export function highlighted(text, streams, wrong = []) {
  const known = new Set(streams.map(({ name }) => name));
  return tokenize(text).flatMap((token) => {
    const kind = isName(token) && known.has(plain(token)) ? "stream" : token.kind;
    return pieces(token, wrong).map(([piece, marked]) => {
      if (kind === "space" && !marked) return piece;
      return h("span", { class: marked ? `t-${kind} wrong` : `t-${kind}` }, piece);
    });
  });
}

function pieces(token, wrong) {
  const cuts = new Set([token.start, token.end]);
  for (const { start, end } of wrong) {
    for (const cut of [start, end]) if (cut > token.start && cut < token.end) cuts.add(cut);
  }
  const sorted = [...cuts].sort((a, b) => a - b);
  return sorted.slice(1).map((end, index) => {
    const start = sorted[index];
    return [token.text.slice(start - token.start, end - token.start), wrong.some((span) => span.start < end && span.end > start)];
  });
}

/** Where the service's places (lines and columns from 1, in characters) are in the text; at least one character each. */
export function spans(text, places) {
  const lines = text.split("\n");
  const starts = lines.map((_, index) => lines.slice(0, index).reduce((sum, line) => sum + line.length + 1, 0));
  const offset = (line, column) => {
    const row = Math.min(Math.max(line, 1), lines.length) - 1;
    return starts[row] + [...lines[row]].slice(0, Math.max(column, 1) - 1).join("").length;
  };
  return places.map(({ line, column, end_line, end_column, message }) => {
    let start = offset(line, column);
    let end = Math.max(offset(end_line ?? line, end_column ?? column + 1), start);
    if (end === start) {
      // A place at the end of the text, where something is missing: the last character stands for it.
      start = Math.min(start, Math.max(0, text.trimEnd().length - 1));
      end = start + 1;
    }
    return { start, end, line, column, message };
  });
}

const option = (kind, note) => (text) => ({ text, kind, note });
const columnsOf = (stream) => stream.columns.map(([name, type]) => ({ text: name, kind: "column", note: type }));
const unique = (options) => [...new Map(options.map((each) => [each.text, each])).values()];

function candidates(before, text, streams) {
  const known = sources(text, streams);
  const tokens = tokenize(before).filter(({ kind }) => kind !== "space" && kind !== "comment");
  const [last, previous] = [tokens.at(-1), tokens.at(-2)];
  if (last?.text === "." && isName(previous)) return known.has(plain(previous)) ? columnsOf(known.get(plain(previous))) : [];
  if (isWord(last, "FROM") || isWord(last, "JOIN")) return streams.map(({ name, columns }) => ({ text: name, kind: "stream", note: `${columns.length} columns` }));
  if (last?.kind === "number" && (isWord(previous, "WITHIN") || isWord(previous, "TOLERANCE"))) return UNITS.map(option("unit"));
  if (isWord(last, "TOLERANCE")) return [];
  if (isWord(last, "WITHIN") || isWord(last, "AS") || last?.kind === "string") return isWord(last, "AS") || isWord(last, "WITHIN") ? [] : KEYWORDS.map(option("keyword"));
  if (!tokens.length) return ["SELECT"].map(option("keyword"));
  const columns = [...(known.size ? known.values() : streams)].flatMap(columnsOf);
  const aliases = [...known].map(([alias, stream]) => ({ text: alias, kind: "alias", note: stream.name }));
  return unique([...aliases, ...columns, ...KEYWORDS.map(option("keyword")), ...[...CALLED].map(option("function"))]);
}

/** Whether the caret stands in a string or a comment, rather than behind one. */
function within(token, caret) {
  if (token?.kind === "comment") return caret < token.end || !token.text.endsWith("*/");
  if (token?.kind !== "string" && token?.kind !== "quoted") return false;
  return caret < token.end || token.text.length < 2 || !token.text.endsWith(token.text[0]);
}

/** What may complete the word at the caret: `{start, options}`; none where nothing fits or inside strings and comments. */
export function complete(text, caret, streams, asked = false) {
  const nothing = { start: caret, options: [] };
  if (within(tokenize(text).find(({ start, end }) => start < caret && caret <= end), caret)) return nothing;
  const word = /[\p{L}_][\p{L}\p{N}_]*$/u.exec(text.slice(0, caret))?.[0] ?? "";
  const start = caret - word.length;
  const after = text.slice(0, start).trimEnd().endsWith(".") && /\.$/.test(text.slice(0, start));
  if (!word && !after && !asked) return nothing;
  const low = word.toLowerCase();
  const fitting = candidates(text.slice(0, start), text, streams).filter(({ text: name }) => name.toLowerCase().startsWith(low));
  if (fitting.length === 1 && fitting[0].text === word) return nothing;
  const exact = fitting.filter(({ text: name }) => name.toLowerCase() !== low || name !== word);
  return { start, options: exact.slice(0, MOST) };
}
