// Overview (#/) and health (#/health) of a run.

import { formatCount, formatNumber, formatSeconds, formatSigned, isAvailable, linkTo } from "./api.js";
import { Facts, Heading, Loaded, Notice, Table, html, rowLink, splitStage } from "./parts.js";
import { chooseStage, isEvaluationStage } from "./tasks.js";
const { useEffect, useRef } = htmPreact;

export function Overview({ run }) {
  return html`<${Loaded} name="overview" params=${{ run }} view=${OverviewBody} run=${run} />`;
}

function OverviewBody({ data, run }) {
  const facts = [["recipe", data.recipe], ["model", data.model], ["benchmark", data.benchmark], ["seed", data.seed], ["created", data.created], ["folder", data.folder]];
  return html`
    <${Heading} title=${data.name}><${Facts} facts=${facts.map(([name, value]) => [name, value == null ? null : String(value)])} /><//>
    ${!data.trained && html`<${Notice} text="No training row is recorded yet, so tokens have no advantages." />`}
    <${Headlines} evaluations=${data.evaluations} metric=${data.metric} />
    <${WaysIn} overview=${data} run=${run} />
    <${Curves} curves=${data.curves} heldOut=${data.held_out} />
    <${Stages} stages=${data.stages} run=${run} />
    <${Changes} changes=${data.changes} />
    ${data.commands.length > 0 && html`<section><h2>Commands</h2>${data.commands.map((command) => html`<pre class="command"><code>${command}</code></pre>`)}</section>`}`;
}

/** Links to what readers look for first. */
function WaysIn({ overview, run }) {
  const [, stage] = chooseStage(overview);
  const unused = overview.stages.findLast(({ has_trees, left_out }) => has_trees && left_out > 0);
  const list = (text, query) => html`<a class="button" href=${linkTo(["tasks"], { stage, run, ...query })}>${text}</a>`;
  const updates = overview.last_updates.filter(({ rows, ...key }) => isAvailable("row", { ...key, run }));
  const policies = updates.filter(({ role }) => role !== "critic");
  const nameOf = ({ role }) => (role === "critic" ? "Rows of the last update of the critic" : `What the last step made more likely${policies.length > 1 ? `: ${role}` : ""}`);
  return html`<nav aria-label="Ways in" class="links">
    ${updates.map((update) => html`<a class="button" href=${rowLink(update, run, "raised")}>${nameOf(update)}</a>`)}
    ${stage && !isEvaluationStage(splitStage(stage).stage) && list("Rollouts that were trained on", { by: "rollouts", where: "trained", column: "advantage", sort: "-extra" })}
    ${unused && list("Rollouts that were not used", { by: "rollouts", where: "left_out", sort: "trained", stage: `${unused.iteration}/${unused.stage}` })}
    ${overview.stages.some((item) => item.stage === "select") && list("Chosen and rejected", { where: "chosen" })}
    ${overview.evaluations.length > 1 && html`<a class="button" href=${linkTo(["compare"])}>Tasks before and after</a>`}
  </nav>`;
}

function Headlines({ evaluations, metric }) {
  if (evaluations.length === 0) return html`<${Notice} text="The policy was not evaluated yet." />`;
  const [first, last] = [evaluations[0], evaluations.at(-1)];
  return html`<section aria-label="Before and after training" class="headlines">
    <${Headline} name=${metric ? `Score (${metric})` : "Score"} first=${first.score} last=${last.score} digits=${3}
      results=${evaluations} value="score" low="low" high="high" />
    <${Headline} name="Tokens per rollout" first=${first.tokens} last=${last.tokens} digits=${1}
      results=${evaluations} value="tokens" />
  </section>`;
}

function Headline({ name, first, last, digits, results, value, low, high }) {
  const isTrained = results.length > 1;
  const top = Math.max(...results.map((result) => result[high] ?? result[value] ?? 0), 1e-9);
  const percent = (number) => `${(100 * (number ?? 0)) / top}%`;
  const bar = (result) => html`<li>
    <a href=${linkTo(["tasks"], { stage: `${result.iteration}/${result.stage}` })}>${result.label}</a>
    <span class="track" aria-hidden="true"><span class="fill" style=${{ width: percent(result[value]) }}></span>
      ${low && html`<span class="interval" style=${{ left: percent(result[low]), width: percent(result[high] - result[low]) }}></span>`}</span>
    <span><b>${formatNumber(result[value], digits)}</b> <span class="muted">${low && `${formatNumber(result[low])} to ${formatNumber(result[high])}`}</span></span>
  </li>`;
  return html`<div class="headline">
    <h2>${name}</h2>
    <p class="big">${isTrained && html`<span class="muted">${formatNumber(first, digits)} <span role="img" aria-label="to">→</span> </span>`}${formatNumber(last, digits)}
      ${isTrained && html` <small>${formatSigned(last - first, digits)}</small>`}</p>
    <p class="muted">${low ? "score with its 95% interval over" : "sampled tokens of all agents on"} ${formatCount(results.at(-1).tasks)} tasks</p>
    <ol class="bars">${results.map(bar)}</ol>
  </div>`;
}

/** Order of curves: those that tell whether the run learns come first. */
const FIRST_CURVES = ["score", "reward", "tokens", "entropy", "loss", "clip_share", "policy_kl", "reference_kl"];

function curveRank([name]) {
  const rank = FIRST_CURVES.indexOf(name.split("/").at(-1));
  return rank < 0 ? FIRST_CURVES.length : rank;
}

function Curves({ curves, heldOut }) {
  const heldOutCurves = heldOut.map(({ iteration, steps, score }) => ({ stage: "held out", iteration, x: "step", steps, series: { score } }));
  const groups = [...heldOutCurves, ...curves].filter(({ steps }) => steps.length > 1);
  const draw = (group) => html`<${CurveGroup} ...${group} />`;
  const shown = heldOut.length + 1;
  return html`${groups.slice(0, shown).map(draw)}${groups.length > shown && html`<details class="more"><summary>Curves of more stages: ${groups.length - shown}</summary>${groups.slice(shown).map(draw)}</details>`}`;
}

function CurveGroup({ stage, iteration, role, x, steps, series }) {
  const pairs = Object.entries(series).filter(([name, values]) => name !== x && name !== "step" && values.some(Number.isFinite)).sort((a, b) => curveRank(a) - curveRank(b));
  const [main, more] = [pairs.slice(0, 8), pairs.slice(8)];
  const draw = ([name, values]) => html`<${Curve} key=${name} name=${name} x=${x} steps=${steps} values=${values} />`;
  return html`<section>
    <h2>Curves of ${stage} <small class="muted">iteration ${iteration}, ${role && `${role}, `}${steps.length} ${x}s</small></h2>
    <div class="curves">${main.map(draw)}</div>
    ${more.length > 0 && html`<details class="more"><summary>${more.length} more curves</summary><div class="curves">${more.map(draw)}</div></details>`}
  </section>`;
}

/** Write a number with about three digits. */
const formatShort = (value) => formatNumber(value, Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 3);

function Curve({ name, x, steps, values }) {
  const [place, pointed] = [useRef(null), useRef(null)];
  const recorded = values.filter((value) => value != null);
  const summary = `${formatShort(recorded[0])} → ${formatShort(recorded.at(-1))}`;
  useEffect(() => {
    const point = (index) => {
      pointed.current.textContent = index == null ? summary : `${x} ${steps[index]}: ${formatNumber(values[index], 4)}`;
    };
    return drawCurve(place.current, steps, values, point);
  }, [steps.length, values.at(-1)]);
  return html`<figure class="curve">
    <figcaption>${name} <span class="muted" ref=${pointed}></span></figcaption>
    <div ref=${place} role="img" aria-label=${`${name} by ${x}: ${recorded.map((value) => formatNumber(value)).join(", ").slice(0, 400)}`}></div>
  </figure>`;
}

/** Draw a curve with uPlot, as wide as its place. `point` gets the index under the mouse. Returns the removal. */
function drawCurve(place, steps, values, point) {
  const style = getComputedStyle(document.documentElement);
  const color = (variable) => style.getPropertyValue(variable).trim();
  const axis = { stroke: color("--muted"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  // uPlot's own ticks never end for ranges such as 1e-10, which a divergence may have.
  const range = (_, low, high) => {
    const margin = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
    return [low - margin, high + margin];
  };
  const splits = (_plot, _axis, low, high) => [0.1, 0.5, 0.9].map((share) => low + share * (high - low));
  const plot = new uPlot(
    {
      width: place.clientWidth || 300,
      height: 150,
      scales: { x: { time: false }, y: { range } },
      legend: { show: false },
      cursor: { y: false },
      hooks: { setCursor: [(plot) => point(plot.cursor.idx)] },
      axes: [{ ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, size: 56, splits, values: (_, ticks) => ticks.map(formatShort) }],
      series: [{}, { stroke: color("--accent"), width: 1.5, points: { show: steps.length < 40, size: 4 }, spanGaps: true }],
    },
    [steps, values.map((value) => (Number.isFinite(value) ? value : null))],
    place,
  );
  point(null);
  const observer = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 150 }));
  observer.observe(place);
  return () => (observer.disconnect(), plot.destroy());
}

function Stages({ stages, run }) {
  const name = ({ iteration, stage, has_trees }) => (has_trees ? html`<a href=${linkTo(["tasks"], { stage: `${iteration}/${stage}`, run })}>${stage}</a>` : stage);
  const metrics = (stage) => Object.entries(stage.metrics ?? {}).slice(0, 4).map(([key, value]) => `${key} ${typeof value === "number" && !Number.isInteger(value) ? formatNumber(value) : value}`).join(", ");
  const rows = stages.map((stage) => [
    stage.iteration, name(stage), formatSeconds(stage.seconds), formatCount(stage.tasks), formatCount(stage.rollouts), formatCount(stage.failed), stage.finished ? "finished" : "running", metrics(stage),
  ]);
  const isLong = rows.length > 30;
  const table = (part) => html`<${Table} label="Stages" heads=${["iteration", "stage", "time", "tasks", "rollouts", "failed", "state", "metrics"]} rows=${part} />`;
  return html`<section><h2>Stages</h2>${table(isLong ? rows.slice(0, 15) : rows)}
    ${isLong && html`<details class="more"><summary>${rows.length - 15} more stages</summary>${table(rows.slice(15))}</details>`}</section>`;
}

function Changes({ changes }) {
  if (!changes?.length) return null;
  const show = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "");
  return html`<section><h2>Settings that differ from the preset</h2>
    <${Table} label="Changed settings" heads=${["setting", "preset", "here"]} rows=${changes.map(({ key, value, preset }) => [key, show(preset), show(value)])} /></section>`;
}

export function Health({ run }) {
  return html`<${Heading} title="Health" /><${Loaded} name="health" params=${{ run }} view=${HealthBody} />`;
}

function HealthBody({ data }) {
  if (data.checks.length === 0) return html`<${Notice} text="No check was made: the run has not recorded what the checks need." />`;
  const order = (check) => (check.level === "ok" ? 1 : 0);
  return html`<ul class="checks">${[...data.checks].sort((a, b) => order(a) - order(b)).map((check) => html`<li class=${check.level}>
    <p><span class="badge ${check.level === "ok" ? "" : "warning"}">${check.level}</span> <b>${check.title}</b>${check.agent && ` (${check.agent})`}${" "}
      <span class="muted">${formatNumber(check.value)}${check.limit == null ? "" : `, limit ${formatNumber(check.limit)}`}</span></p>
    <p>${check.detail}</p>
    <p class="links">${check.links?.filter((link) => link.startsWith("#/")).map((link, index) => html`<a href=${link}>${link.startsWith("#/row") ? "Rows" : "Dialogues"}${index > 0 && ` ${index + 1}`}</a>`)}</p>
  </li>`)}</ul>`;
}
