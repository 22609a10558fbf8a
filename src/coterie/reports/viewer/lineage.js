// Ways between rows and turns: a training row (#/row), what a turn trained (#/turn), and two policies on a task (#/compare).

import { formatCount, formatNumber, linkTo, replaceQuery, showInvisible, useData } from "./api.js";
import { Credits, Facts, Heading, Legend, Loaded, Notice, SCALES, Side, Table, VirtualList, html, pathLink, rowLink } from "./parts.js";
import { Inspector, Tokens, drawPart, largest, tokenFacts, valueOf } from "./path.js";
import { LeftOut, Use, isEvaluationStage } from "./tasks.js";
const { useMemo, useState } = htmPreact;

export function RowScreen({ role, updates, position, query }) {
  const params = { role, updates, position, iteration: query.get("iteration"), stage: query.get("stage"), run: query.get("run") };
  return html`<${Heading} title=${`Row ${position} of update ${updates}, ${role}`} trail=${[["Overview", "#/"]]} /><${Loaded} name="row" params=${params} view=${RowBody} query=${query} />`;
}

function RowBody({ data, query }) {
  const [facts, setFacts] = useState(null);
  const run = query.get("run");
  const color = SCALES[query.get("color")] ? query.get("color") : data.advantage ? "advantage" : "logprob";
  const { row, place } = data;
  return html`
    <${Facts} facts=${[["row", `${row.position + 1} of ${data.rows}`], ["iteration", String(row.iteration)], ["stage", row.stage], ["step", row.step == null ? null : formatCount(row.step)], ["agent", row.agent], ["segment", row.leaf && formatCount(row.segment)], ["from the file", row.origin], ["weight", row.weight], ["context", row.context], ["trained tokens", formatCount(row.tokens)], ...Object.entries(data.metrics)]} />
    <p class="links">${row.side && html`<${Side} side=${row.side} />`}${[-1, 1].map((step) => row.position + step >= 0 && row.position + step < data.rows && html`<a class="button" href=${rowLink({ ...row, position: row.position + step }, run)}>${step < 0 ? "Previous" : "Next"} row</a>`)}
      ${place && html`<a class="button" href=${pathLink(place.iteration, place.stage, place.task, row.leaf, { agent: row.agent, run })}>Its dialogue</a>
      <a class="button" href=${pathLink(place.iteration, place.stage, place.task, null, { run })}>Its task and group</a>`}
      ${data.pair?.filter(({ position }) => position !== row.position).map((side) => html`<a class="button" href=${rowLink(side, run)}>Its pair: ${side.side}</a>`)}</p>
    ${place && html`<section><h2>Rewards and credit</h2><${Credits} credits=${data.credit} /><${Use} selected=${data.selected} leftOut=${data.left_out.filter(({ agent }) => !row.turn && (!agent || agent === row.agent))} trained=${data.trained} run=${run} /></section>`}
    <section><h2>Tokens</h2>
      ${data.text && html`<form class="tools" onSubmit=${(event) => event.preventDefault()}><label>Color <select value=${color} onChange=${(event) => replaceQuery({ color: event.target.value })}>${Object.entries(SCALES).filter(([name]) => name !== "version").map(([name, { label }]) => html`<option value=${name}>${label}</option>`)}</select></label><${Legend} color=${color} /></form>`}
      ${!data.text ? html`<${Notice} text=${place ? "The tokens cannot be shown: they contain a secret, or the prompt was edited for the training." : `The record does not hold the tokens of a file: read ${row.origin} of the training data.`} />` : html`<${RowTokens} data=${data} color=${color} token=${query.get("token")} onInspect=${setFacts} />`}
    </section>
    ${data.targets.length > 0 && html`<section><h2>Targets</h2><${Table} label="Targets" heads=${["turn", "from", "to", "written by"]} rows=${data.targets.map(({ turn, start, stop, writer }) => [turn && html`<a href=${linkTo(["turn", turn], { run })}>${turn.slice(0, 8)}</a>`, start, stop, writer])} /></section>`}
    <${Inspector} facts=${facts} />`;
}

/** Tokens of a row. The arrays of a row run over its targets, so each token gets the index of its target. */
function RowTokens({ data, color, token, onInspect }) {
  const order = useMemo(() => {
    const positions = new Map();
    // The first token of a row has no prediction, so it is not trained.
    for (const { start, stop } of data.targets ?? []) for (let token = Math.max(1, start); token < stop; token += 1) positions.set(token, positions.size);
    return positions;
  }, [data]);
  const arrays = { sampler: data.sampler, trained: data };
  const maximum = largest([data.advantage]);
  const value = valueOf(color, arrays);
  // A step raises the logit of a token by its advantage, times the probability that it lacks.
  const rise = (target) => (data.advantage?.[target] ?? 1) * -Math.expm1(valueOf("logprob", arrays)(target) ?? 0);
  const raised = () => [...order.keys()].reduce((best, index) => (rise(order.get(index)) > rise(order.get(best)) ? index : best), order.keys().next().value);
  return html`<${Tokens} tokens=${data} color=${color} label="Tokens of the row" isContext=${(index) => !order.has(index)} onInspect=${onInspect} selected=${token === "raised" ? raised() : token} onSelect=${(index) => replaceQuery({ token: index })}
    tone=${(index) => (order.has(index) ? SCALES[color].tone(value(order.get(index)), maximum, 0) : "")}
    facts=${(index) => (order.has(index) ? tokenFacts(arrays, order.get(index)) : [["mask", "context, not trained"]])} />`;
}

export function TurnScreen({ id, run }) {
  return html`<${Heading} title=${`Turn ${id.slice(0, 8)}`} trail=${[["Tasks", linkTo(["tasks"], { run })]]} /><${Loaded} name="turn" params=${{ id, run }} view=${TurnBody} run=${run} />`;
}

function TurnBody({ data, run }) {
  const rows = data.rows.map((row) => [html`<a href=${rowLink(row, run)}>row ${row.position}</a>`, row.iteration, row.stage, row.role, row.updates, row.step, row.side, row.weight]);
  const pairs = data.selected.map(({ iteration, stage, agent, side, against, weight }) => [iteration, stage, agent, html`<${Side} side=${side || "selected"} />`, against && html`<a href=${linkTo(["turn", against], { run })}>${against.slice(0, 8)}</a>`, weight]);
  return html`
    <${Facts} facts=${[["speaker", data.speaker], ["kind", data.kind], ["policy version that wrote it", (data.versions ?? []).map(([version, count]) => `${version} (${count} tokens)`).join(", ") || data.writer], ["rollouts through it", formatCount(data.leaves)]]} />
    <${Credits} credits=${data.credit} />
    <p class="links"><a class="button" href=${pathLink(data.iteration, data.stage, data.task, data.leaf, { run })}>Its dialogue</a>
      <a class="button" href=${linkTo(["task", data.iteration, data.stage, data.task, "tree"], { node: data.id, run })}>Its place in the tree</a></p>
    ${data.parts.map(drawPart)}
    <section><h2>Rows and steps that it trained</h2>${rows.length ? html`<${Table} label="Rows" heads=${["row", "iteration", "stage", "role", "update", "step", "side", "weight"]} rows=${rows} />` : html`<p class="muted">None is recorded.</p>`}</section>
    ${pairs.length > 0 && html`<section><h2>Selections</h2><${Table} label="Selections" heads=${["iteration", "stage", "agent", "side", "against", "weight"]} rows=${pairs} /></section>`}
    <${LeftOut} entries=${data.left_out} run=${run} />`;
}

export function CompareScreen({ query }) {
  return html`<${Heading} title="Compare" /><${Loaded} name="overview" view=${CompareOfRun} query=${query} />`;
}

function CompareOfRun({ data, query }) {
  const { sides } = data;
  if (sides.length < 2) return html`<${Notice} text="Only one stage has dialogues so far. Compare two runs with --compare." />`;
  // Tasks recur in stages of one kind, so the other side is the last stage of that kind.
  const kindOf = (key) => key.split("/")[2];
  const evaluations = sides.filter(([key]) => isEvaluationStage(kindOf(key)));
  const a = query.get("a") ?? (evaluations[0] ?? sides[0])[0];
  const b = query.get("b") ?? sides.findLast(([key]) => key !== a && kindOf(key) === kindOf(a))?.[0] ?? sides.at(-1)[0];
  const select = (name, value) => html`<label>${name === "a" ? "Before" : "After"} <select value=${value} onChange=${(event) => replaceQuery({ [name]: event.target.value })}>${sides.map(([key, text]) => html`<option value=${key}>${showInvisible(text)}</option>`)}</select></label>`;
  return html`<form class="tools" onSubmit=${(event) => event.preventDefault()}>${select("a", a)}${select("b", b)}</form>
    <${Loaded} name="compare" params=${{ a, b }} view=${CompareBody} query=${query} />`;
}

const CHANGES = { all: "all", fixed: "wrong to right", broken: "right to wrong", better: "better", worse: "worse" };

function changeOf(before, after) {
  if (before == null || after == null || before === after) return [];
  if (after > before) return ["better", ...(before === 0 && after === 1 ? ["fixed"] : [])];
  return ["worse", ...(before === 1 && after === 0 ? ["broken"] : [])];
}

function CompareBody({ data, query }) {
  const kind = query.get("change") ?? "all";
  const tasks = data.tasks.map((task, index) => ({ task, index, changes: ["all", ...changeOf(data.a_score[index], data.b_score[index])] }));
  const rows = tasks.filter(({ changes }) => changes.includes(kind));
  const named = data.tasks.indexOf(query.get("task"));
  const row = (position) => {
    const { task, index, changes } = rows[position];
    return html`<div role="row" class="line compare" key=${task}><span role="cell" class="c-task"><a href=${linkTo(["compare"], { ...Object.fromEntries(query), task })} aria-current=${index === named ? "true" : null}><bdi>${showInvisible(task)}</bdi></a></span>
      <span role="cell" class="number">${formatNumber(data.a_score[index])} → ${formatNumber(data.b_score[index])}</span><span role="cell" class="c-status">${changes.slice(1).map((change) => html`<span class="badge">${CHANGES[change]}</span> `)}</span></div>`;
  };
  return html`<div class="filters" role="group" aria-label="Changes">${Object.entries(CHANGES).map(([name, text]) => html`<button type="button" aria-pressed=${kind === name} onClick=${() => replaceQuery({ change: name === "all" ? "" : name })}>${text} <small>${formatCount(tasks.filter(({ changes }) => changes.includes(name)).length)}</small></button>`)}</div>
    ${query.get("task") && named < 0 && html`<${Notice} text=${`Both sides have no graded rollout of ${query.get("task")}.`} />`}
    ${named >= 0 && html`<${Difference} key=${named} data=${data} index=${named} />`}
    <div class="grid short" role="table" aria-label="Tasks" aria-rowcount=${rows.length}><${VirtualList} role="rowgroup" tabindex="0" aria-label="Rows" count=${rows.length} rowHeight=${34} row=${row} /></div>`;
}

/** Return the position of the first character in which two texts differ. */
function firstDifference(a, b) {
  let position = 0;
  while (position < a.length && a[position] === b[position]) position += 1;
  return position;
}

/** Two dialogues of a task side by side. The first turn that differs is marked from its first different character. */
function Difference({ data, index }) {
  const { data: a, error: aError } = useData("path", { leaf: data.a_leaf[index], run: data.a.run || null });
  const { data: b, error: bError } = useData("path", { leaf: data.b_leaf[index], run: data.b.run || null });
  if (aError || bError) return html`<${Notice} kind="error" text=${aError ?? bError} />`;
  if (!a || !b) return html`<p class="muted" role="status">Loading …</p>`;
  const texts = (path) => path.turns.map((turn) => turn.parts.map(({ text }) => text ?? "").join(""));
  const [left, right] = [texts(a), texts(b)];
  const first = Array.from({ length: Math.max(left.length, right.length) }).findIndex((_, turn) => left[turn] !== right[turn]);
  const position = first < 0 ? 0 : firstDifference(left[first] ?? "", right[first] ?? "");
  const column = (path, lines, name) => html`<article class="card" aria-label=${name}><h3><a href=${pathLink(path.iteration, path.stage, path.task, path.leaf, { run: name === "After" ? data.b.run || null : data.a.run || null })}>${name}</a> <small class="muted">score ${formatNumber(path.score)}</small></h3>
    ${lines.map((text, turn) => html`<div class="turn ${path.turns[turn].kind}"><h4>${showInvisible(path.turns[turn].speaker)}</h4>
      <div class="text" dir="auto">${turn === first ? html`${showInvisible(text.slice(0, position))}<mark>${showInvisible(text.slice(position, 20000)) || "(ends here)"}</mark>` : showInvisible(text.slice(0, 20000))}</div></div>`)}</article>`;
  return html`<section><h2>${showInvisible(data.tasks[index])}</h2><p class="muted">${first < 0 ? "Both dialogues are equal." : `The first difference is in turn ${first + 1}.`}</p>
    <div class="columns" tabindex="0" role="region" aria-label="Both dialogues">${column(a, left, "Before")}${column(b, right, "After")}</div></section>`;
}
