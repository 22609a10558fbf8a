// Components and scales that several screens use.

import { formatCount, formatNumber, formatSigned, linkTo, showInvisible, useData } from "./api.js";

export const { html } = htmPreact;
const { useLayoutEffect, useRef, useState } = htmPreact;

/** Load the answer of a request and draw it with `view`; show that it loads, or why it cannot be shown. */
export function Loaded({ name, params, view: View, ...props }) {
  const { data, error } = useData(name, params);
  if (error) return html`<${Notice} kind="error" text=${error} />`;
  if (!data) return html`<p class="muted" role="status">Loading …</p>`;
  return html`${data.damaged?.map((text) => html`<${Notice} kind="error" text=${`Damaged: ${text}`} />`)}<${View} data=${data} ...${props} />`;
}

export function Notice({ text, kind = "" }) {
  return html`<p class="notice ${kind}" role=${kind === "error" ? "alert" : "note"}>${showInvisible(text)}</p>`;
}

/** Heading of a screen, with links to the screens above it. */
export function Heading({ title, trail = [], children }) {
  return html`<header class="heading">
    ${trail.length > 0 && html`<nav aria-label="Breadcrumbs"><ol class="trail">${trail.map(([text, href]) => html`<li><a href=${href}>${showInvisible(text)}</a></li>`)}</ol></nav>`}
    <h1 tabindex="-1">${showInvisible(title)}</h1>
    ${children}
  </header>`;
}

/** Names and values in one line. Values are texts, numbers or elements. */
export function Facts({ facts }) {
  const shown = facts.filter(([, value]) => value != null && value !== "");
  return html`<dl class="facts">${shown.map(([name, value]) => html`<div><dt>${showInvisible(name)}</dt><dd>${cellText(value)}</dd></div>`)}</dl>`;
}

function cellText(value) {
  if (typeof value === "string") return html`<bdi>${showInvisible(value)}</bdi>`;
  if (typeof value === "number") return Number.isInteger(value) ? formatCount(value) : formatNumber(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value?.href) return html`<a href=${value.href}>${showInvisible(value.text)}</a>`;
  return value ?? "–";
}

/** Meanings of names, as pairs. */
export function Words({ words }) {
  return words.length > 0 && html`<p class="muted">${words.map(([name, meaning]) => html`<b>${showInvisible(name)}</b>: ${showInvisible(meaning)}. `)}</p>`;
}

/** Table that scrolls sideways by itself where the screen is narrow. */
export function Table({ heads, rows, label, className = "" }) {
  if (rows.length === 0) return null;
  const isNumeric = heads.map((_, column) => rows.every((row) => row[column] == null || typeof row[column] === "number"));
  const isCount = heads.map((_, column) => rows.every((row) => row[column] == null || Number.isInteger(row[column])));
  const cell = (value, column) => html`<td class=${isNumeric[column] ? "number" : ""}>${isNumeric[column] ? (isCount[column] ? formatCount(value) : formatNumber(value)) : cellText(value)}</td>`;
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">
    <table class=${className}>
      <thead><tr>${heads.map((head, column) => html`<th scope="col" class=${isNumeric[column] ? "number" : ""}>${showInvisible(head)}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr>${row.map(cell)}</tr>`)}</tbody>
    </table>
  </div>`;
}

/** Long text, cut until a button shows all of it. */
export function LongText({ text, limit = 20000, className = "" }) {
  const [isOpen, setOpen] = useState(false);
  const isCut = !isOpen && text.length > limit;
  return html`<div class="text ${className}" dir="auto">${showInvisible(isCut ? text.slice(0, limit) : text)}</div>
    ${isCut && html`<button class="small" onClick=${() => setOpen(true)}>Show ${formatCount(text.length - limit)} more characters</button>`}`;
}

/** Mark of a side of a pair. The words make it readable without colors. */
export function Side({ side }) {
  return side ? html`<span class="badge ${side}">${side}</span>` : null;
}

/** Credits of a node as names and numbers. */
export function Credits({ credits }) {
  const pairs = Object.entries(credits ?? {});
  if (pairs.length === 0) return null;
  // Only what moves a token's probability has the colors of the scale; counts are plain.
  const show = (name, value) => (/^(advantage|reward|return|total|term\b)/.test(name) ? html`<span class="tone ${toneOf(value, Math.max(1, Math.abs(value)))}">${formatSigned(value)}</span>` : formatNumber(value));
  return html`<${Facts} facts=${pairs.map(([name, value]) => [name, show(name, value)])} />`;
}

/** List of rows of equal height, of which only those in view are elements. `scrollTo` is an index to keep in view. */
export function VirtualList({ count, rowHeight, row, scrollTo, className = "", ...attributes }) {
  const list = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const update = () => {
    const { scrollTop, clientHeight } = list.current;
    setView((last) => (last.top === scrollTop && last.height === clientHeight ? last : { top: scrollTop, height: clientHeight }));
  };
  useLayoutEffect(() => {
    update();
    const observer = new ResizeObserver(update);
    observer.observe(list.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (scrollTo == null || scrollTo < 0) return;
    const { scrollTop, clientHeight } = list.current;
    const top = scrollTo * rowHeight;
    if (top < scrollTop) list.current.scrollTop = top;
    else if (top + rowHeight > scrollTop + clientHeight) list.current.scrollTop = top + rowHeight - clientHeight;
    update();
  }, [scrollTo]);
  const first = Math.max(0, Math.floor(view.top / rowHeight) - 8);
  const last = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + 8);
  const rows = Array.from({ length: Math.max(0, last - first) }, (_, offset) => row(first + offset));
  return html`<div class="virtual ${className}" ref=${list} onScroll=${update} ...${attributes}>
    <div role="presentation" style=${{ height: `${first * rowHeight}px` }}></div>
    ${rows}
    <div role="presentation" style=${{ height: `${Math.max(0, count - last) * rowHeight}px` }}></div>
  </div>`;
}

/** Return the class of a value between orange (`n4`) and blue (`p4`). Width and style of a line repeat the color. */
export function toneOf(value, maximum) {
  if (value == null || Number.isNaN(value) || !maximum) return "";
  const level = Math.min(4, Math.ceil((4 * Math.abs(value)) / maximum - 1e-9));
  return level === 0 ? "" : (value < 0 ? "n" : "p") + level;
}

function level(value, thresholds) {
  return thresholds.filter((threshold) => value > threshold).length;
}

/** Tones of the versions that wrote a path, oldest first, from the fifth on as the fourth. */
export const VERSION_TONES = ["", "p2", "n2", "p4", ...Array(60).fill("n4")];

/** Quantities that color tokens: name, unit, the class of a value, and the legend. */
export const SCALES = {
  advantage: { label: "advantage", tone: toneOf,
    legend: [["n4", "less likely"], ["n1", ""], ["p1", ""], ["p4", "more likely"]] },
  logprob: { label: "log-prob", tone: (value) => (value == null ? "" : ["", "n1", "n2", "n3", "n4"][level(-value, [0.1, 0.7, 2.3, 4.6])]),
    legend: [["", "p > 0.9"], ["n1", "> 0.5"], ["n2", "> 0.1"], ["n3", "> 0.01"], ["n4", "rarer"]] },
  ratio: { label: "ratio", tone: (value) => (value == null ? "" : ["", "n1", "n2", "n3", "n4"].map((tone) => (value < 1 ? tone : tone.replace("n", "p")))[level(Math.abs(value - 1), [0.01, 0.05, 0.2, 0.5])]),
    legend: [["n4", "< 0.5"], ["n3", "< 0.8"], ["", "about 1"], ["p3", "> 1.2"], ["p4", "> 1.5"]] },
  entropy: { label: "entropy", tone: (value) => (value == null ? "" : ["", "p1", "p2", "p3", "p4"][level(value, [0.1, 0.5, 1, 2])]),
    legend: [["", "< 0.1"], ["p1", "> 0.1"], ["p2", "> 0.5"], ["p3", "> 1"], ["p4", "> 2 nats"]] },
  clip: { label: "clipped", tone: (value) => (value ? "n4" : ""), legend: [["n4", "clipped"], ["", "not clipped"]] },
  version: { label: "version", tone: (_value, _maximum, index) => VERSION_TONES[index] ?? "", legend: [] },
};

export function Legend({ color, entries }) {
  const pairs = entries ?? SCALES[color].legend;
  return html`<p class="legend"><span class="muted">${SCALES[color]?.label ?? color}:</span> ${pairs.map(([tone, text]) => html`<span class="tone ${tone}">${text || "\u00a0"}</span>`)}</p>`;
}

/** Link to a task, or to one path of it. */
export function pathLink(iteration, stage, task, leaf, query) {
  return linkTo(["task", iteration, stage, task, ...(leaf ? ["path", leaf] : [])], query);
}

/** Link to a training row, and to one of its tokens. */
export function rowLink({ role, updates, position, iteration, stage }, run, token) {
  return linkTo(["row", role, updates, position], { iteration, stage, run, token });
}

/** Split `ITERATION/STAGE` into parameters. A stage may contain slashes itself. */
export function splitStage(text) {
  const mark = text.indexOf("/");
  return { iteration: text.slice(0, mark), stage: text.slice(mark + 1) };
}
