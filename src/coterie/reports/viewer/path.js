// Dialogue of a path (…/path/LEAF), with its tokens colored by what the trainer used.

import { formatCount, formatNumber, formatSeconds, formatSigned, imageAddress, isAvailable, linkTo, replaceQuery, showInvisible, useData } from "./api.js";
import { Credits, Facts, Heading, Legend, Loaded, LongText, Notice, SCALES, VERSION_TONES, html } from "./parts.js";
import { LeftOut, Use, isEvaluationStage } from "./tasks.js";
const { useEffect, useLayoutEffect, useRef, useState } = htmPreact;

// -- tokens ---------------------------------------------------------------------------------------

const BLOCK = 2000;
const STRIP_KEYS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

/** Facts of the token under the mouse or the focus, at the bottom of the window. */
export function Inspector({ facts }) {
  return html`<div class="inspector" role="status" aria-label="Token">${facts ? html`<${Facts} facts=${facts} />` : html`<p class="muted">Point at a token, or move with Tab and the arrow keys, to see its numbers.</p>`}</div>`;
}

/** Return blocks of token spans. Blocks let the browser skip those that are out of view. */
function makeBlocks(tokens) {
  const blocks = [];
  for (let index = 0; index < tokens.ids.length; index += 1) {
    if (index % BLOCK === 0) blocks.push(Object.assign(document.createElement("div"), { className: "block" }));
    const piece = tokens.text.slice(tokens.offsets[index], tokens.offsets[index + 1]);
    blocks.at(-1).append(Object.assign(document.createElement("span"), { textContent: showInvisible(piece), tokenIndex: index, kind: piece === "" ? " partial" : piece.includes("\n") ? " newline" : "" }));
  }
  return blocks;
}

/** Return the token on the next or previous line that is nearest to a token. */
function tokenOnLine(spans, index, direction) {
  const { offsetLeft: left, offsetTop: top } = spans[index];
  let best = index;
  for (let next = index + direction; spans[next]; next += direction) {
    const isNewLine = (spans[next].offsetTop - top) * direction > 4;
    if (!isNewLine) continue;
    if (best !== index && Math.abs(spans[next].offsetTop - spans[best].offsetTop) > 4) break;
    if (best === index || Math.abs(spans[next].offsetLeft - left) < Math.abs(spans[best].offsetLeft - left)) best = next;
  }
  return best;
}

/**
 * Strip of tokens. `tone(index)` returns the class of a token's color, `isContext(index)` whether it is masked, and
 * `facts(index)` what the inspector shows. `selected` is the token to focus when the strip is first drawn.
 */
export function Tokens({ tokens, tone, isContext = () => false, facts, color, onInspect, onSelect, selected, label }) {
  const [strip, spans, inspected] = [useRef(null), useRef([]), useRef(null)];
  useLayoutEffect(() => {
    const blocks = makeBlocks(tokens);
    spans.current = blocks.flatMap((block) => [...block.children]);
    strip.current.replaceChildren(...blocks);
  }, [tokens.text, tokens.ids.length]);
  useLayoutEffect(() => {
    spans.current.forEach((span, index) => {
      span.className = `k ${tone(index)}${isContext(index) ? " context" : ""}${span.kind}`;
    });
  }, [tokens, color]);
  useEffect(() => {
    const span = spans.current[selected];
    if (!span) return;
    span.scrollIntoView({ block: "center" });
    focusToken(span);
  }, []);
  const inspect = (event) => {
    const index = event.target.tokenIndex;
    if (index === undefined || inspected.current === event.target) return;
    inspected.current = event.target;
    onInspect([["token", `${index + 1} of ${tokens.ids.length}`], ["id", String(tokens.ids[index])], ["text", JSON.stringify(event.target.textContent.slice(0, 80))], ...facts(index)]);
  };
  const focusToken = (span) => {
    strip.current.querySelector("[tabindex]")?.removeAttribute("tabindex");
    span.tabIndex = 0;
    span.focus({ preventScroll: false });
  };
  const move = (event) => {
    const index = event.target.tokenIndex ?? -1;
    const lines = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const step = STRIP_KEYS[event.key];
    if (event.key === "Enter" && index >= 0) onSelect?.(index);
    if (step === undefined && lines === undefined) return;
    event.preventDefault();
    const target = lines && index >= 0 ? tokenOnLine(spans.current, index, lines) : Math.max(0, Math.min(spans.current.length - 1, index + (step ?? 1)));
    focusToken(spans.current[target]);
  };
  const select = (event) => event.target.tokenIndex !== undefined && (focusToken(event.target), onSelect?.(event.target.tokenIndex));
  return html`<div class="tokens" ref=${strip} tabindex="0" role="group" aria-label=${label} dir="auto"
    onMouseMove=${inspect} onfocusin=${inspect} onClick=${select} onKeyDown=${move}></div>`;
}

/** Return the largest absolute value of arrays with gaps. */
export function largest(arrays) {
  let maximum = 0;
  for (const values of arrays) for (const value of values ?? []) maximum = Math.max(maximum, Math.abs(value ?? 0));
  return maximum;
}

/** Return a function from a token to the value that a color shows. `trained` has arrays over the same tokens. */
export function valueOf(color, { sampler, trained, versions = [], credit }) {
  const ends = [];
  for (const [, count] of versions) ends.push((ends.at(-1) ?? 0) + count);
  return {
    advantage: (index) => trained?.advantage?.[index] ?? credit,
    logprob: (index) => sampler?.[index] ?? trained?.logprob?.[index],
    ratio: (index) => (trained?.logprob?.[index] == null || sampler?.[index] == null ? null : Math.exp(trained.logprob[index] - sampler[index])),
    entropy: (index) => trained?.entropy?.[index],
    clip: (index) => trained?.clipped?.[index],
    version: (index) => versions[ends.findIndex((end) => index < end)]?.[0],
  }[color];
}

/** Return the numbers of a token for the inspector. */
export function tokenFacts(arrays, index) {
  const value = (color) => valueOf(color, arrays)(index);
  const logprob = value("logprob");
  return [
    ["advantage", value("advantage") == null ? null : formatSigned(value("advantage"))],
    ["log-prob", logprob == null ? null : `${formatNumber(logprob, 4)} (p ${formatNumber(Math.exp(logprob))})`],
    ["ratio", value("ratio") == null ? null : formatNumber(value("ratio"), 4)],
    ["teacher", arrays.trained?.teacher?.[index] == null ? null : formatNumber(arrays.trained.teacher[index], 4)],
    ["reference", arrays.trained?.reference?.[index] == null ? null : formatNumber(arrays.trained.reference[index], 4)],
    ["entropy", value("entropy") == null ? null : formatNumber(value("entropy"))],
    ["clipped", value("clip") == null ? null : value("clip") ? "yes" : "no"],
    ["version", value("version")],
  ];
}

// -- dialogue -------------------------------------------------------------------------------------

export function PathScreen({ iteration, stage, task, leaf, query }) {
  const run = query.get("run");
  return html`<${Heading} title=${`Dialogue of ${task}`} trail=${[["Tasks", linkTo(["tasks"], { stage: `${iteration}/${stage}`, run })], [task, linkTo(["task", iteration, stage, task], { run })]]} />
    <${Loaded} name="path" params=${{ leaf, run }} view=${PathBody} query=${query} />`;
}

/** Advantage of a leaf for a speaker, which colors all tokens of that speaker if none has its own. */
function leafAdvantage(path, turn) {
  const credits = { ...path.credit, ...turn.credit };
  return credits[`advantage:${turn.speaker}`] ?? credits.advantage ?? null;
}

function PathBody({ data, query }) {
  const [facts, setFacts] = useState(null);
  const agent = query.get("agent") ?? "";
  const run = query.get("run");
  const color = SCALES[query.get("color")] ? query.get("color") : data.trained.length || Object.keys(data.credit).some((name) => name.startsWith("advantage")) ? "advantage" : "logprob";
  const tokenTurns = data.turns.filter((turn) => turn.tokens);
  const maximum = largest([...tokenTurns.flatMap((turn) => turn.tokens.trained.map(({ advantage }) => advantage)), data.turns.map((turn) => leafAdvantage(data, turn))]);
  const versions = [...new Set(data.turns.flatMap((turn) => turn.versions.map(([version]) => version)))];
  const option = (value, text = value) => html`<option value=${value}>${showInvisible(text)}</option>`;
  return html`
    <${Facts} facts=${[["score", data.score ?? "not graded"], ["answer", data.answer], ["ended by", `${data.reason ?? "goes on"}${data.cut_off ? " (cut off)" : ""}`], ["sample", data.sample], ...Object.entries(data.metrics ?? {}).filter(([, value]) => typeof value === "number").slice(0, 8)]} />
    <${Credits} credits=${data.credit} />
    <${Use} selected=${data.selected} leftOut=${data.left_out} trained=${data.trained} isEvaluation=${isEvaluationStage(data.stage)} run=${run} />
    ${data.failure && html`<${Notice} kind="error" text=${data.failure} />`}
    <form class="tools" onSubmit=${(event) => event.preventDefault()}>
      <label>Color <select value=${color} onChange=${(event) => replaceQuery({ color: event.target.value })}>${Object.entries(SCALES).map(([name, { label }]) => option(name, label))}</select></label>
      <label>Seen by <select value=${agent} onChange=${(event) => replaceQuery({ agent: event.target.value })}>${option("", "everyone")}${data.agents.map((name) => option(name))}</select></label>
      <${Legend} color=${color} entries=${color === "version" ? versions.map((version, index) => [VERSION_TONES[index], version]) : undefined} />
    </form>
    ${data.turns.map((turn, index) => html`<${Turn} key=${turn.id} turn=${turn} number=${index + 1} path=${data} color=${color} maximum=${maximum} versions=${versions} agent=${agent} selected=${query.get("token")} run=${run} onInspect=${setFacts} />`)}
    <${LeftOut} entries=${data.turns.flatMap((turn) => turn.left_out)} run=${run} />
    <${Inspector} facts=${facts} />`;
}

function Turn({ turn, number, path, color, maximum, versions, agent, selected, run, onInspect }) {
  const isTrained = turn.tokens?.trained.length > 0;
  const facts = [["written by", turn.versions.length ? turn.writer : null], ["tokens", turn.tokens && formatCount(turn.tokens.ids.length)], ["ended by", turn.finish], ["temperature", turn.temperature], ["alternatives", turn.siblings > 1 ? formatCount(turn.siblings) : null]];
  return html`<article class="turn ${turn.kind} ${isTrained ? "is-trained" : ""}" aria-label=${`Turn ${number}, ${showInvisible(turn.speaker)}`}>
    <header><h2>${showInvisible(turn.speaker)} ${turn.kind !== turn.speaker && html`<small class="muted">${turn.kind}</small>`}</h2>
      ${isTrained && html`<span class="badge trained">trained</span>`}
      ${turn.selected.map(({ side }) => side && html`<span class="badge ${side}">${side}</span>`)}
      <a href=${linkTo(["turn", turn.id], { run })}>${turn.tokens ? "what it trained" : "link"}</a></header>
    ${turn.damaged && html`<${Notice} kind="error" text="This turn is damaged, so it cannot be shown." />`}
    <${Facts} facts=${facts} />
    <${Credits} credits=${turn.credit} />
    ${turn.has_prompt && isAvailable("prompt", { turn: turn.id, run }) && html`<${Prompt} turn=${turn} run=${run} />`}
    <${TurnContent} ...${{ turn, path, color, maximum, versions, agent, selected, onInspect }} />
    ${turn.plan.length > 0 && html`<${Plan} levels=${turn.plan} />`}
    <${Calls} calls=${turn.calls} results=${turn.results} />
  </article>`;
}

/** Text of a turn as tokens, if they were recorded and may be shown; else as parts. */
function TurnContent({ turn, path, color, maximum, versions, agent, selected, onInspect }) {
  if (turn.damaged) return null;
  const isReadable = ({ audience }) => !agent || !audience || audience.includes(agent) || turn.speaker === agent;
  const { tokens } = turn;
  const parts = turn.parts.filter((part) => !tokens?.text || part.image);
  const audiences = [...new Set(turn.parts.filter(({ audience }) => audience).map(({ audience }) => audience.join(", ")))];
  const note = audiences.length > 0 && html`<p class="muted">Only for ${showInvisible(audiences.join("; "))}</p>`;
  if (!turn.parts.every(isReadable)) return html`${note}<p class="muted">${showInvisible(agent)} cannot read ${turn.parts.some(isReadable) ? "all of this turn" : "this turn"}.</p>${turn.parts.filter(isReadable).map(drawPart)}`;
  // A critic's rows have no advantages.
  const trained = tokens?.trained.findLast(({ advantage }) => advantage) ?? tokens?.trained.at(-1);
  const arrays = { sampler: tokens?.logprob, trained, versions: turn.versions, credit: leafAdvantage(path, turn) };
  const value = valueOf(color, arrays);
  const [selectedTurn, selectedToken] = (selected ?? "").split(".");
  return html`${note}
    ${tokens?.text && html`<${Tokens} tokens=${tokens} color=${color + maximum} label=${`Tokens of ${showInvisible(turn.speaker)}, colored by ${SCALES[color].label}`}
      tone=${(index) => SCALES[color].tone(value(index), maximum, versions.indexOf(value(index)))}
      facts=${(index) => tokenFacts(arrays, index)} onInspect=${onInspect} onSelect=${(index) => replaceQuery({ token: `${turn.id}.${index}` })}
      selected=${selectedTurn === turn.id ? Number(selectedToken) : null} />`}
    ${parts.map(drawPart)}`;
}

export function drawPart(part) {
  if (part.image) {
    const address = imageAddress(part.image);
    return address ? html`<img class="image" src=${address} alt="Image of the dialogue" />` : html`<p class="muted">An image that this export lacks</p>`;
  }
  return html`<${LongText} text=${part.text} className=${part.source === "thought" ? "thought" : ""} />`;
}

/** Prompt of a turn as the model saw it, loaded when it is opened. */
function Prompt({ turn, run }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="prompt" onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Prompt as the model saw it${turn.prompt_tokens != null && ` (${formatCount(turn.prompt_tokens)} tokens)`}</summary>
    ${isOpen && html`<${Loaded} name="prompt" params=${{ turn: turn.id, run }} view=${PromptBody} />`}
  </details>`;
}

function PromptBody({ data }) {
  if (data.hidden) return html`<p class="muted">Hidden: the prompt contains a secret. Start coterie view with --secrets to show it.</p>`;
  const message = ({ role, parts }) => html`<h4>${role}</h4>${parts.map(drawPart)}`;
  return html`${data.text != null ? html`<${LongText} text=${data.text} className="context" />` : data.messages.map(message)}
    ${data.tools?.length > 0 && html`<p class="muted">Tools: ${data.tools.map(({ name }) => showInvisible(name)).join(", ")}</p>`}`;
}

/** Tasks of a plan by level. Those of a level wait only for earlier levels, so they can run at the same time. */
function Plan({ levels }) {
  const task = ({ id, text, after }) => html`<div class="card"><b>${id}</b><bdi>${showInvisible(text)}</bdi>${after.length > 0 && html`<small class="muted">after ${after.join(", ")}</small>`}</div>`;
  return html`<section aria-label="Plan"><h3>Plan: tasks in one line can run at the same time</h3><ol class="plan">${levels.map((tasks) => html`<li>${tasks.map(task)}</li>`)}</ol></section>`;
}

/** Tool calls of a turn and their results on a time line. */
function Calls({ calls, results }) {
  if (!calls.length && !results.length) return null;
  const end = Math.max(...results.map(({ began, seconds }) => (began ?? 0) + (seconds ?? 0)), 0);
  const bar = ({ began, seconds }) => end > 0 && html`<span class="track" aria-hidden="true"><span class="fill" style=${{ left: `${(100 * (began ?? 0)) / end}%`, width: `${Math.max(1, (100 * (seconds ?? 0)) / end)}%` }}></span></span>`;
  return html`<ul class="calls">
    ${calls.map((call) => html`<li><b>${showInvisible(call.name)}</b> <code>${showInvisible(call.arguments)}</code>${call.error && html` <span class="badge warning">${showInvisible(call.error)}</span>`}</li>`)}
    ${results.map((result) => html`<li><p>${result.error ? html`<span class="badge warning">error</span>` : "result"} <span class="muted">${formatSeconds(result.seconds)}${result.left_out > 0 && `, ${formatCount(result.left_out)} characters left out`}</span></p>${bar(result)}<${LongText} text=${result.text} limit=${4000} /></li>`)}
  </ul>`;
}
