// List of tasks and rollouts (#/tasks), and the rollouts of a task side by side (#/task/IT/STAGE/TASK).

import { formatCount, formatNumber, isAvailable, isExport, linkTo, replaceQuery, showInvisible, useData } from "./api.js";
import { Credits, Facts, Heading, Loaded, LongText, Notice, Side, Table, VirtualList, Words, html, pathLink, rowLink, splitStage } from "./parts.js";
const { useEffect, useMemo, useRef, useState } = htmPreact;

// -- rows of the list -----------------------------------------------------------------------------

/** Filters by name: label and condition on a row. */
const FILTERS = {
  failed: ["failed", (row) => row.failed > 0],
  cut_off: ["cut off", (row) => row.cutOff > 0],
  equal: ["equal rewards", (row) => row.rollouts > 1 && row.spread === 0],
  wrong: ["score 0", (row) => row.score === 0],
  chosen: ["chosen", (row) => (row.selected & 1) > 0],
  rejected: ["rejected", (row) => (row.selected & 2) > 0],
  trained: ["trained on", (row) => row.trained > 0],
  left_out: ["left out", (row) => row.leftOut.length > 0],
};
/** Columns by key: label, digits, and whether a phone shows it. */
const COLUMNS = { score: ["score", 3], reward: ["reward", 3], spread: ["spread", 3], tokens: ["tokens", 0], turns: ["turns", 0] };

function mean(values) {
  const present = values.filter((value) => value != null);
  return present.length ? present.reduce((sum, value) => sum + value, 0) / present.length : null;
}

/** Return a row for a list of rollouts: a single one, or all of a task. */
function makeRow(data, indices, extra) {
  const pick = (column) => indices.map((index) => column[index]);
  const rewards = pick(data.reward ?? data.score).map((reward, position) => reward ?? data.score[indices[position]]).filter((value) => value != null);
  const isSingle = indices.length === 1;
  return {
    task: data.tasks[data.task[indices[0]]],
    leaves: pick(data.leaf),
    sample: isSingle ? data.sample[indices[0]] : null,
    rollouts: indices.length,
    score: mean(pick(data.score)),
    reward: data.reward && mean(pick(data.reward)),
    spread: rewards.length ? Math.max(...rewards) - Math.min(...rewards) : null,
    tokens: mean(pick(data.tokens)),
    turns: mean(pick(data.turns)),
    failed: pick(data.failure).filter((failure) => failure != null).length,
    cutOff: pick(data.cut_off).filter(Boolean).length,
    selected: pick(data.selected).reduce((bits, value) => bits | value, 0),
    trained: pick(data.trained).reduce((sum, value) => sum + (value ?? 0), 0),
    leftOut: [...new Set(pick(data.left_out).filter(Boolean))],
    answers: pick(data.answer).filter(Boolean).join(" "),
    extra: extra ? mean(pick(extra)) : null,
  };
}

function makeRows(data, isByRollout, extra) {
  const groups = new Map();
  data.task.forEach((task, index) => {
    const key = isByRollout ? index : task;
    groups.has(key) ? groups.get(key).push(index) : groups.set(key, [index]);
  });
  return [...groups.values()].map((indices) => makeRow(data, indices, extra));
}

function sortRows(rows, sort) {
  if (!sort) return rows;
  const [key, sign] = sort.startsWith("-") ? [sort.slice(1), -1] : [sort, 1];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  // Rows without a value come last in both orders.
  return [...rows].sort((a, b) => (a[key] == null) - (b[key] == null) || sign * compare(a[key], b[key]) || 0);
}

// -- list -----------------------------------------------------------------------------------------

/** Return the stages that have dialogues, and the one that a query names, else the last one before the evaluation. */
export function chooseStage(overview, named, run) {
  const stages = overview.stages.filter(({ has_trees, iteration, stage }) => has_trees && isAvailable("tasks", { iteration, stage, run })).map((stage) => `${stage.iteration}/${stage.stage}`);
  const trained = stages.filter((stage) => !/\/(evaluate|measure)/.test(stage));
  return [stages, named && stages.includes(named) ? named : trained.at(-1) ?? stages.at(-1)];
}

export function TasksScreen({ query }) {
  return html`<${Heading} title="Tasks" /><${Loaded} name="overview" params=${{ run: query.get("run") }} view=${TasksOfRun} query=${query} />`;
}

function TasksOfRun({ data, query }) {
  const [stages, stage] = chooseStage(data, query.get("stage"), query.get("run"));
  if (!stage) return html`<${Notice} text="No stage has recorded dialogues yet." />`;
  const select = html`<label>Stage <select value=${stage} onChange=${(event) => replaceQuery({ stage: event.target.value })}>
    ${stages.map((name) => html`<option value=${name}>${showInvisible(name)}</option>`)}</select></label>`;
  return html`<div class="tools">${select}</div>
    <${Loaded} name="tasks" params=${{ ...splitStage(stage), run: query.get("run") }} view=${TaskList} query=${query} stage=${stage} />`;
}

function useSearch(stage, text, run) {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), 250);
    return () => clearTimeout(timer);
  }, [text]);
  const { data } = useData(settled.length > 1 && !isExport ? "search" : null, { ...splitStage(stage), text: settled, run });
  return useMemo(() => ({ leaves: new Set(data?.leaves), tasks: new Set(data?.tasks), more: data?.more }), [data]);
}

function TaskList({ data, query, stage }) {
  const isByRollout = query.get("by") === "rollouts";
  const extras = { ...data.credit, ...data.metrics };
  const wanted = query.get("column");
  const extraName = wanted ? Object.keys(extras).find((name) => name === wanted || name.startsWith(`${wanted}:`)) ?? "" : "";
  const text = query.get("q") ?? "";
  const hits = useSearch(stage, text, query.get("run"));
  const where = (query.get("where") ?? "").split(",").filter((name) => name in FILTERS);
  const sort = query.get("sort") ?? "";
  const all = useMemo(() => makeRows(data, isByRollout, extras[extraName]), [data, isByRollout, extraName]);
  const rows = useMemo(() => {
    const needle = text.toLowerCase();
    const isHit = (row) => row.task.toLowerCase().includes(needle) || row.answers.toLowerCase().includes(needle) || hits.tasks.has(row.task) || row.leaves.some((leaf) => hits.leaves.has(leaf));
    return sortRows(all.filter((row) => where.every((name) => FILTERS[name][1](row)) && (!text || isHit(row))), sort);
  }, [all, where.join(), sort, text, hits]);
  return html`
    <form class="tools" role="search" onSubmit=${(event) => event.preventDefault()}>
      <label>Search <input type="search" value=${text} placeholder="task, answer or text" onInput=${(event) => replaceQuery({ q: event.target.value })} /></label>
      <label>Rows <select value=${isByRollout ? "rollouts" : ""} onChange=${(event) => replaceQuery({ by: event.target.value })}><option value="">tasks</option><option value="rollouts">rollouts</option></select></label>
      ${Object.keys(extras).length > 0 && html`<label>Column <select value=${extraName} onChange=${(event) => replaceQuery({ column: event.target.value })}>
        <option value="">none</option>${Object.keys(extras).map((name) => html`<option value=${name}>${showInvisible(name)}</option>`)}</select></label>`}
    </form>
    <${Filters} rows=${all} where=${where} />
    <p class="muted" role="status">${formatCount(rows.length)} of ${formatCount(all.length)} ${isByRollout ? "rollouts" : "tasks"}${hits.more ? "; the search found more than it lists" : ""}${rows.length === 0 ? "; remove a filter or choose another stage" : ""}</p>
    <${Grid} rows=${rows} data=${data} sort=${sort} extra=${extraName} run=${query.get("run")} isByRollout=${isByRollout} />`;
}

function Filters({ rows, where }) {
  const counts = useMemo(() => Object.entries(FILTERS).map(([name, [label, test]]) => [name, label, rows.filter(test).length]), [rows]);
  const toggle = (name) => replaceQuery({ where: (where.includes(name) ? where.filter((item) => item !== name) : [...where, name]).join(",") });
  return html`<div class="filters" role="group" aria-label="Filters">${counts.filter(([name, , count]) => count || where.includes(name)).map(([name, label, count]) => html`
    <button type="button" aria-pressed=${where.includes(name)} onClick=${() => toggle(name)}>${label} <small>${formatCount(count)}</small></button>`)}</div>`;
}

function Grid({ rows, data, sort, extra, run, isByRollout }) {
  const hasReward = useMemo(() => data.reward?.some((reward) => reward != null), [data]);
  const [active, setActive] = useState(-1);
  const grid = useRef(null);
  const columns = [...Object.keys(COLUMNS), "extra"].filter((key) => (key === "spread" ? !isByRollout : key === "extra" ? extra : key !== "reward" || hasReward));
  useEffect(() => {
    if (active >= 0) grid.current.querySelector(`[aria-rowindex="${active + 2}"] a`)?.focus({ preventScroll: true });
  }, [active]);
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
    if (!step || rows.length === 0) return;
    event.preventDefault();
    setActive(Math.max(0, Math.min(rows.length - 1, active + step)));
  };
  const head = (key, label) => {
    const direction = sort === key ? "ascending" : sort === `-${key}` ? "descending" : "none";
    const next = { none: `-${key}`, descending: key, ascending: "" }[direction];
    return html`<span role="columnheader" aria-sort=${direction} class="c-${key}"><button type="button" onClick=${() => replaceQuery({ sort: next })}>${label}<span aria-hidden="true">${{ none: "", ascending: " ↑", descending: " ↓" }[direction]}</span></button></span>`;
  };
  const row = (index) => html`<${GridRow} key=${index} row=${rows[index]} index=${index} columns=${columns} data=${data} run=${run} onFocus=${() => setActive(index)} />`;
  return html`<div class="grid" style=${{ "--values": columns.length }} role="table" aria-label="Tasks" aria-rowcount=${rows.length + 1} ref=${grid}>
    <div role="rowgroup"><div role="row" aria-rowindex="1" class="line head">${head("task", "task")}${columns.map((key) => head(key, key === "extra" ? showInvisible(extra) : COLUMNS[key][0]))}<span role="columnheader" class="c-status">status</span></div></div>
    <${VirtualList} role="rowgroup" tabindex="0" aria-label="Rows" count=${rows.length} rowHeight=${34} row=${row} scrollTo=${active} onKeyDown=${move} />
  </div>`;
}

function GridRow({ row, index, columns, data, run, onFocus }) {
  const href = row.sample != null && row.leaves[0] ? pathLink(data.iteration, data.stage, row.task, row.leaves[0], { run }) : pathLink(data.iteration, data.stage, row.task, null, { run });
  const share = (count) => (row.rollouts > 1 && count < row.rollouts ? ` ${count}/${row.rollouts}` : "");
  const badges = [
    row.failed > 0 && ["warning", `failed${share(row.failed)}`],
    ...row.leftOut.map((reason) => ["", reason.replaceAll("_", " ")]),
    row.cutOff > 0 && ["warning", `cut off${share(row.cutOff)}`],
    (row.selected & 1) > 0 && ["chosen", "chosen"],
    (row.selected & 2) > 0 && ["rejected", "rejected"],
    row.trained > 0 && ["", "trained"],
  ].filter(Boolean);
  return html`<div role="row" class="line" aria-rowindex=${index + 2}>
    <span role="cell" class="c-task"><a href=${href} onFocus=${onFocus}><bdi>${showInvisible(row.task)}</bdi></a>${row.sample != null ? html` <small class="muted">${row.sample}</small>` : row.rollouts > 1 && html` <small class="muted">× ${row.rollouts}</small>`}</span>
    ${columns.map((key) => html`<span role="cell" class="c-${key} number">${formatNumber(row[key], COLUMNS[key]?.[1] ?? 3)}</span>`)}
    <span role="cell" class="c-status">${badges.map(([kind, label]) => html`<span class="badge ${kind}">${showInvisible(label)}</span> `)}</span>
  </div>`;
}

const [SHOWN_COLUMNS, SHOWN_ROWS] = [8, 100];

// -- a task ---------------------------------------------------------------------------------------

export function TaskScreen({ iteration, stage, task, query }) {
  const run = query.get("run");
  return html`<${Heading} title=${task} trail=${[["Tasks", linkTo(["tasks"], { run })], [`${iteration} ${stage}`, linkTo(["tasks"], { stage: `${iteration}/${stage}`, run })]]} />
    <${Loaded} name="task" params=${{ iteration, stage, task, run }} view=${TaskBody} run=${run} />`;
}

function TaskBody({ data, run }) {
  const rank = (rollout) => rollout.credit?.reward ?? rollout.score ?? -Infinity;
  const rollouts = [...data.rollouts].sort((a, b) => rank(b) - rank(a));
  const here = ["task", data.iteration, data.stage, data.task];
  // Names of credit may end with an agent, such as `advantage:Alice`.
  const credits = [...rollouts, ...Object.values(data.turns)].flatMap(({ credit }) => Object.keys(credit ?? {}).map((name) => name.split(":")[0]));
  const names = new Set([...credits, isEvaluationStage(data.stage) ? "" : "selected"]);
  const { data: meanings } = useData("words", { run });
  return html`
    <${PublicFields} fields=${data.public} title="Task" />
    ${data.secrets && html`<${PublicFields} fields=${data.secrets} title="Secrets, which only graders and critics may read" />`}
    <p class="links"><a class="button" href=${linkTo([...here, "tree"], { run })}>Tree of ${formatCount(data.nodes)} turns</a>
      <a class="button" href=${linkTo(["compare"], { task: data.task, a: `${run ?? 0}/${data.iteration}/${data.stage}` })}>Compare with another policy</a></p>
    ${rollouts.length > 0 ? html`<section><h2>Rollouts</h2><${Ranking} data=${data} rollouts=${rollouts} run=${run} />
      <${Words} words=${Object.entries(meanings?.words ?? {}).filter(([name]) => names.has(name))} /></section>` : html`<${Notice} text="Its tree has turns, but no finished rollout." />`}
    <${Pairs} data=${data} run=${run} />
    ${rollouts.length > 0 && html`<section><h2>Side by side</h2><${Columns} data=${data} rollouts=${rollouts} run=${run} /></section>`}
    <${LeftOut} entries=${Object.values(data.facts.left_out).flat()} run=${run} />`;
}

function PublicFields({ fields, title }) {
  const entries = Object.entries(fields ?? {});
  if (entries.length === 0) return null;
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");
  return html`<section><h2>${title}</h2><dl class="fields">${entries.map(([name, value]) => html`<dt>${showInvisible(name)}</dt><dd><${LongText} text=${text(value)} limit=${2000} /></dd>`)}</dl></section>`;
}

/** Say what became of a rollout or turn: its sides, its rows, or why it was not used. */
export function Use({ selected = [], leftOut = [], trained = [], isEvaluation = false, run }) {
  const updates = [...Map.groupBy(trained, (row) => `${row.role} ${row.updates}`).values()];
  const linkRows = (rows) => html`<span>trained ${showInvisible(rows[0].role)} in update ${rows[0].updates}:${rows.slice(0, 8).map((row) => html` <a href=${rowLink(row, run)}>row ${row.position}</a>`)}${rows.length > 8 && " …"}</span>`;
  const sides = [...new Set(selected.map(({ side }) => side || "selected"))];
  const reasons = [...new Set(leftOut.map(({ reason, agent, number }) => `${agent && `${agent}: `}${reason.replaceAll("_", " ")}${number == null ? "" : ` (${formatNumber(number)})`}`))];
  return html`<div class="use">${sides.map((side) => html`<${Side} side=${side} /> `)}
    ${updates.slice(-3).map(linkRows)}
    ${reasons.map((reason) => html`<p class="reason">Left out: ${showInvisible(reason)}</p>`)}
    ${sides.length + trained.length + reasons.length === 0 && html`<span class="muted">${isEvaluation ? "evaluation, not trained on" : "not used; no reason is recorded"}</span>`}</div>`;
}

/** Return what is recorded on the nodes of a rollout's path, as properties of Use. */
function factsOnPath({ root, ids, facts }, { path }) {
  const nodes = path.length > 0 ? [root, ...path.map((index) => ids[index])] : [];
  const pick = (byNode) => nodes.flatMap((node) => byNode[node] ?? []);
  return { selected: pick(facts.selected), leftOut: pick(facts.left_out), trained: pick(facts.trained) };
}

export const isEvaluationStage = (stage) => /^(evaluate|measure|probe)/.test(stage);

function Ranking({ data, rollouts, run }) {
  const names = [...new Set(rollouts.flatMap((rollout) => Object.keys(rollout.credit ?? {})))].sort();
  const rows = rollouts.slice(0, SHOWN_ROWS).map((rollout) => [
    rollout.leaf ? html`<a href=${pathLink(data.iteration, data.stage, data.task, rollout.leaf, { run })}>${rollout.sample}</a>` : rollout.sample,
    rollout.score, rollout.tokens, rollout.failure ? `failed: ${rollout.failure}` : `${rollout.reason ?? ""}${rollout.cut_off ? " (cut off)" : ""}`,
    html`<${Use} ...${factsOnPath(data, rollout)} isEvaluation=${isEvaluationStage(data.stage)} run=${run} />`,
    ...names.map((name) => rollout.credit?.[name]),
  ]);
  return html`<${Table} label="Rollouts" heads=${["rollout", "score", "tokens", "ended by", "use", ...names]} rows=${rows} />
    ${rollouts.length > SHOWN_ROWS && html`<p><a href=${linkTo(["tasks"], { stage: `${data.iteration}/${data.stage}`, by: "rollouts", q: data.task, run })}>All ${formatCount(rollouts.length)} rollouts</a></p>`}`;
}

function Pairs({ data, run }) {
  if (data.pairs.length === 0) return null;
  const side = (id, name) => {
    const turn = data.turns[id];
    return html`<div class="card ${name}"><p><${Side} side=${name} /> <a href=${linkTo(["turn", id], { run })}>${showInvisible(turn?.speaker ?? "turn")}</a> <small class="muted">${formatCount(turn?.tokens)} tokens</small></p>
      <${LongText} text=${turn ? turn.text ?? "(hidden: a secret)" : "(open the turn to read it)"} limit=${1500} /><${Credits} credits=${turn?.credit} /></div>`;
  };
  return html`<section><h2>Preference pairs</h2>${data.pairs.slice(0, 50).map((pair) => html`<div class="pair">${side(pair.node, "chosen")}${pair.against && side(pair.against, "rejected")}</div>`)}
    ${data.pairs.length > 50 && html`<p class="muted">and ${data.pairs.length - 50} more pairs</p>`}</section>`;
}

function Columns({ data, rollouts, run }) {
  const [shown, setShown] = useState(SHOWN_COLUMNS);
  const turn = (id) => {
    const { speaker, text, kind } = data.turns[id] ?? { speaker: id.slice(0, 8), text: "(open the dialogue to read it)" };
    return html`<div class="turn ${kind}"><h4><a href=${linkTo(["turn", id], { run })}>${showInvisible(speaker)}</a></h4>${text == null ? html`<p class="muted">hidden: a secret</p>` : html`<${LongText} text=${text} limit=${800} />`}</div>`;
  };
  const column = (rollout) => html`<article class="card" aria-label=${`Rollout ${rollout.sample}`}>
    <h3>${rollout.leaf ? html`<a href=${pathLink(data.iteration, data.stage, data.task, rollout.leaf, { run })}>Rollout ${rollout.sample}</a>` : `Rollout ${rollout.sample}`}</h3>
    <${Facts} facts=${[["score", rollout.score ?? "not graded"], ["answer", rollout.answer]]} />
    ${rollout.failure && html`<${Notice} kind="error" text=${rollout.failure} />`}
    ${rollout.path.map((index) => turn(data.ids[index]))}
  </article>`;
  return html`<div class="columns" tabindex="0" role="region" aria-label="Rollouts side by side">${rollouts.slice(0, shown).map(column)}</div>
    ${rollouts.length > shown && html`<button onClick=${() => setShown(shown + 24)}>Show more of ${formatCount(rollouts.length)} rollouts</button>`}`;
}

export function LeftOut({ entries, run }) {
  if (!entries?.length) return null;
  const rows = entries.slice(0, 500).map(({ node, stage, agent, reason, number }) => [html`<a href=${linkTo(["turn", node], { run })}>${node.slice(0, 8)}</a>`, stage, agent, reason.replaceAll("_", " "), number]);
  return html`<section><h2>Not used, and why</h2><${Table} label="Left out" heads=${["turn", "stage", "agent", "reason", "number"]} rows=${rows} /></section>`;
}
