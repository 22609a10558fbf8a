// Overview (#/) and health (#/health) of a run.

import { formatCount, formatNumber, formatSeconds, formatSigned, isAvailable, linkTo, showInvisible } from "./api.js";
import { Facts, Heading, Loaded, Notice, Table, Words, html, rowLink, splitStage } from "./parts.js";
import { chooseStage, isEvaluationStage } from "./tasks.js";
const { useEffect, useRef } = htmPreact;

export function Overview({ run }) {
  return html`<${Loaded} name="overview" params=${{ run }} view=${OverviewBody} run=${run} />`;
}

function OverviewBody({ data, run }) {
  const { excerpt, folder } = data;
  return html`
    <${Heading} title=${data.name}><${Facts} facts=${data.facts.map(([name, value]) => [name, value == null ? null : String(value)])} /><//>
    ${excerpt && html`<${Notice} text=${`This page holds the dialogues of ${excerpt.tasks} of ${excerpt.of} tasks.${folder && ` All of them: coterie view ${folder}`}`} />`}
    ${folder && !data.trained && html`<${Notice} text="No training row is recorded yet, so tokens have no advantages." />`}
    ${data.stages.length > 0 && html`<${Headlines} evaluations=${data.evaluations} metric=${data.metric} />`}
    <${WaysIn} overview=${data} run=${run} />
    <${Loaded} name="sections" params=${{ run }} view=${Sections} />
    ${folder && html`<${Stages} stages=${data.stages} run=${run} />`}
    ${data.commands.length > 0 && html`<section><h2>Commands</h2>${data.commands.map((command) => html`<pre class="command"><code>${showInvisible(command)}</code></pre>`)}</section>`}`;
}

/** Tables and charts that the server made. */
function Sections({ data }) {
  const body = ({ title, intro, heads, words, rows, charts, steps }) => html`
    ${intro && html`<p class="muted">${showInvisible(intro)}</p>`}
    <${Charts} charts=${charts} steps=${steps} />
    <${Table} label=${title} heads=${heads} rows=${rows} />
    <${Words} words=${Object.entries(words)} />`;
  return data.sections.map((section) => (section.folded
    ? html`<details class="more" key=${section.id}><summary>${showInvisible(section.title)}</summary>${body(section)}</details>`
    : html`<section key=${section.id}><h2>${showInvisible(section.title)}</h2>${body(section)}</section>`));
}

/** Links to what readers look for first. */
function WaysIn({ overview, run }) {
  const [, stage] = chooseStage(overview, null, run);
  const unused = overview.stages.findLast(({ iteration, stage, has_trees, left_out }) => has_trees && left_out > 0 && isAvailable("tasks", { iteration, stage, run }));
  const list = (text, query) => html`<a class="button" href=${linkTo(["tasks"], { stage, run, ...query })}>${text}</a>`;
  const updates = overview.last_updates.filter(({ rows, ...key }) => isAvailable("row", { ...key, run }));
  const policies = updates.filter(({ role }) => role !== "critic");
  const nameOf = ({ role }) => (role === "critic" ? "Rows of the last update of the critic" : `What the last step made more likely${policies.length > 1 ? `: ${role}` : ""}`);
  return html`<nav aria-label="Ways in" class="links">
    ${updates.map((update) => html`<a class="button" href=${rowLink(update, run, "raised")}>${nameOf(update)}</a>`)}
    ${stage && !isEvaluationStage(splitStage(stage).stage) && list("Rollouts that were trained on", { by: "rollouts", where: "trained", column: "advantage", sort: "-extra" })}
    ${unused && list("Rollouts that were not used", { by: "rollouts", where: "left_out", sort: "trained", stage: `${unused.iteration}/${unused.stage}` })}
    ${overview.stages.some((item) => item.stage === "select") && list("Chosen and rejected", { where: "chosen" })}
    ${overview.evaluations.length > 1 && html`<a class="button" href=${linkTo(["compare"])}>${overview.evaluations.at(-1).run ? "Tasks of two policies" : "Tasks before and after"}</a>`}
  </nav>`;
}

function Headlines({ evaluations, metric }) {
  if (evaluations.length === 0) return html`<${Notice} text="No evaluation is finished." />`;
  return html`<section aria-label="Before and after training" class="headlines">
    <${Headline} name=${metric ? `Score (${metric})` : "Score"} digits=${3} results=${evaluations} value="score" low="low" high="high" />
    <${Headline} name="Tokens per rollout" digits=${1} results=${evaluations} value="tokens" />
  </section>`;
}

function Headline({ name, digits, results, value, low, high }) {
  const [first, last, isTrained] = [results[0][value], results.at(-1)[value], results.length > 1];
  const top = Math.max(...results.map((result) => result[high] ?? result[value] ?? 0), 1e-9);
  const percent = (number) => `${(100 * (number ?? 0)) / top}%`;
  const bar = (result) => html`<li>
    <a href=${linkTo(["tasks"], { stage: `${result.iteration}/${result.stage}`, run: result.run || null })}>${showInvisible(result.label)}</a>
    <span class="track" aria-hidden="true"><span class="fill" style=${{ width: percent(result[value]) }}></span>
      ${low && html`<span class="interval" style=${{ left: percent(result[low]), width: percent(result[high] - result[low]) }}></span>`}</span>
    <span><b>${formatNumber(result[value], digits)}</b> <span class="muted">${low && `${formatNumber(result[low])} to ${formatNumber(result[high])}`}</span></span>
  </li>`;
  return html`<div class="headline">
    <h2>${name}</h2>
    ${!results.at(-1).run && html`<p class="big">${isTrained && html`<span class="muted">${formatNumber(first, digits)} <span role="img" aria-label="to">→</span> </span>`}${formatNumber(last, digits)}
      ${isTrained && html` <small>${formatSigned(last - first, digits)}</small>`}</p>`}
    <p class="muted">${low ? "score with its 95% interval over" : "sampled tokens of all agents on"} ${formatCount(results.at(-1).tasks)} tasks</p>
    <ol class="bars">${results.map(bar)}</ol>
  </div>`;
}

function Charts({ charts, steps }) {
  const draw = (part) => html`<div class="curves">${part.map((chart) => html`<${Chart} key=${chart.title} ...${chart} steps=${steps ?? chart.steps} />`)}</div>`;
  return charts.length > 0 && html`${draw(charts.slice(0, SHOWN_CHARTS))}
    ${charts.length > SHOWN_CHARTS && html`<details class="more"><summary>${charts.length - SHOWN_CHARTS} more curves</summary>${draw(charts.slice(SHOWN_CHARTS))}</details>`}`;
}

const SHOWN_CHARTS = 8;
/** Colors and dashes of series, as in their keys. */
const LINES = [["--accent", []], ["--edge-n", [6, 3]], ["--edge-p", [2, 3]], ["--muted", [9, 3, 2, 3]]];
/** Write a number with about three digits. */
const formatShort = (value) => formatNumber(value, Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 3);

/** Chart of series over steps, which are numbers or names. Under the mouse, the caption has the values of a step. */
function Chart({ title, x, steps, series }) {
  const [place, pointed] = [useRef(null), useRef(null)];
  const describe = (write) => series.map(({ name, values }) => (series.length > 1 ? `${name} ` : "") + write(values)).join(", ");
  const ends = (values) => [values.find((value) => value != null), values.findLast((value) => value != null)].map(formatShort).join(" → ");
  useEffect(() => {
    const point = (index) => {
      pointed.current.textContent = showInvisible(index != null ? `${x} ${steps[index]}: ${describe((values) => formatNumber(values[index], 4))}` : series.length > 1 ? "" : describe(ends));
    };
    return drawChart(place.current, steps, series, point);
  }, [steps.length, series[0].values.at(-1)]);
  return html`<figure class="curve">
    <figcaption>${showInvisible(title)} <span class="muted" ref=${pointed}></span>
      ${series.length > 1 && html`<br />${series.map(({ name }, index) => html`<span class="key s${index % 4}">${showInvisible(name)}</span> `)}`}</figcaption>
    <div ref=${place} role="img" aria-label=${`${title} by ${x}: ${describe(ends).slice(0, 400)}`}></div>
  </figure>`;
}

/** Draw a chart with uPlot, as wide as its place. `point` gets the index under the mouse. Returns the removal. */
function drawChart(place, steps, series, point) {
  const color = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  const axis = { stroke: color("--muted"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  // uPlot's own ticks never end for ranges such as 1e-10, which a divergence may have.
  const range = (_, low, high) => {
    const margin = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return [low - margin, high + margin];
  };
  const splits = (_plot, _axis, low, high) => [0.1, 0.5, 0.9].map((share) => low + share * (high - low));
  const isNamed = steps.some((step) => typeof step === "string");
  const xs = isNamed ? steps.map((_, index) => index) : steps;
  const ticks = isNamed && { splits: () => xs, values: () => steps.map((step) => showInvisible(step).slice(0, 12)) };
  const [data, lines, bands] = [[xs], [{}], []];
  const add = (values, line) => lines.push(line) && data.push(values.map((value) => (Number.isFinite(value) ? value : null)));
  series.forEach(({ values, low, high }, index) => {
    const [stroke, dash] = [color(LINES[index % 4][0]), LINES[index % 4][1]];
    add(values, { stroke, dash, width: 1.5, points: { show: steps.length < 40, size: 4 }, spanGaps: true });
    if (low) bands.push({ series: [lines.length, lines.length + 1], fill: `${stroke}22` });
    for (const ends of low ? [high, low] : []) add(ends, { points: { show: false } });
  });
  const options = {
    width: place.clientWidth || 300, height: 150,
    scales: { x: { time: false, ...(isNamed && { range: [-0.3, xs.length - 0.7] }) }, y: { range } },
    legend: { show: false }, cursor: { y: false },
    hooks: { setCursor: [(plot) => point(plot.cursor.idx)] },
    axes: [{ ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000], ...ticks }, { ...axis, size: 56, splits, values: (_, values) => values.map(formatShort) }],
    series: lines, bands,
  };
  const plot = new uPlot(options, data, place);
  point(null);
  const observer = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 150 }));
  observer.observe(place);
  return () => (observer.disconnect(), plot.destroy());
}

function Stages({ stages, run }) {
  const name = ({ iteration, stage, has_trees }) => (has_trees && isAvailable("tasks", { iteration, stage, run }) ? html`<a href=${linkTo(["tasks"], { stage: `${iteration}/${stage}`, run })}>${stage}</a>` : stage);
  const metrics = (stage) => Object.entries(stage.metrics ?? {}).filter(([key]) => !["seconds", "settings", "weights"].includes(key)).map(([key, value]) => `${key} ${typeof value === "number" && !Number.isInteger(value) ? formatNumber(value) : value}`).join(", ");
  const rows = stages.map((stage) => [stage.iteration, name(stage), formatSeconds(stage.seconds), stage.tasks, stage.rollouts, stage.failed, stage.finished ? "finished" : "running", metrics(stage)]);
  return html`<section><h2>Stages</h2><details class="more" open=${rows.length < 30}><summary>${rows.length} stages</summary>
    <${Table} label="Stages" heads=${["iteration", "stage", "time", "tasks", "rollouts", "failed", "state", "metrics"]} rows=${rows} /></details></section>`;
}

export function Health({ run }) {
  return html`<${Heading} title="Health" /><${Loaded} name="health" params=${{ run }} view=${HealthBody} />`;
}

function HealthBody({ data }) {
  if (data.checks.length === 0) return html`<${Notice} text="No check was made: the run has not recorded what the checks need." />`;
  return html`<ul class="checks">${[...data.checks].sort((a, b) => (a.level === "ok") - (b.level === "ok")).map((check) => html`<li class=${check.level}>
    <p><span class="badge ${check.level === "ok" ? "" : "warning"}">${check.level}</span> <b>${check.title}</b>${check.agent && ` (${check.agent})`}${" "}
      <span class="muted">${formatNumber(check.value)}${check.limit == null ? "" : `, limit ${formatNumber(check.limit)}`}</span></p>
    <p>${check.detail}</p>
    <p class="links">${check.links?.filter((link) => link.startsWith("#/")).map((link, index) => html`<a href=${link}>${link.startsWith("#/row") ? "Rows" : "Dialogues"}${index > 0 && ` ${index + 1}`}</a>`)}</p>
  </li>`)}</ul>`;
}
