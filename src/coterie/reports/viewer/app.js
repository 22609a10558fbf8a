// Frame of the page: navigation, the screen of a route, and what is kept when the route changes.

import { isAvailable, isExport, linkTo, pollVersion, showInvisible, useData, useLive, useRoute } from "./api.js";
import { Heading, Notice, html } from "./parts.js";
import { TaskScreen, TasksScreen } from "./tasks.js";
import { Health, Overview } from "./overview.js";
import { PathScreen } from "./path.js";
import { TreeScreen } from "./tree.js";
import { CompareScreen, RowScreen, TurnScreen } from "./lineage.js";
const { render, useEffect, useLayoutEffect } = htmPreact;

/** Return the screen of a route, or null for an unknown route. */
function screenOf(path, query) {
  const [name, ...rest] = path;
  const run = query.get("run");
  if (!name) return html`<${Overview} run=${run} />`;
  if (name === "health") return html`<${Health} run=${run} />`;
  if (name === "tasks") return html`<${TasksScreen} query=${query} />`;
  if (name === "compare") return html`<${CompareScreen} query=${query} />`;
  if (name === "row" && rest.length === 3) return html`<${RowScreen} role=${rest[0]} updates=${rest[1]} position=${rest[2]} query=${query} />`;
  if (name === "turn" && rest.length === 1) return html`<${TurnScreen} id=${rest[0]} run=${run} />`;
  if (name !== "task" || rest.length < 3) return null;
  const [iteration, stage, task, part, leaf] = rest;
  if (!part) return html`<${TaskScreen} iteration=${iteration} stage=${stage} task=${task} query=${query} />`;
  if (part === "tree") return html`<${TreeScreen} key=${task} iteration=${iteration} stage=${stage} task=${task} query=${query} />`;
  if (part === "path" && leaf) return html`<${PathScreen} key=${leaf} iteration=${iteration} stage=${stage} task=${task} leaf=${leaf} query=${query} />`;
  return null;
}

function Navigation({ current, overview }) {
  const item = (name, text, href) => html`<li><a href=${href} aria-current=${current === name ? "page" : null}>${text}</a></li>`;
  const { isReachable, isRunning } = useLive();
  const state = isExport ? "export" : !isReachable ? "server stopped" : isRunning ? "running" : "";
  return html`<header class="bar">
    <button class="skip" onClick=${() => document.querySelector("h1")?.focus()}>Skip to content</button>
    <a class="name" href="#/">${showInvisible(overview?.name ?? "coterie")}</a>
    <nav aria-label="Screens"><ul>
      ${item("", "Overview", "#/")}${isAvailable("health", {}) && item("health", "Health", "#/health")}${(!isExport || overview?.stages.length > 0) && html`${item("tasks", "Tasks", "#/tasks")}${item("compare", "Compare", "#/compare")}`}
    </ul></nav>
    <span class="state" role="status">${state && html`<span class="badge ${isReachable ? "" : "warning"}">${state}</span>`}</span>
  </header>`;
}

/** Positions of the screens that were left, so that going back shows what was read. */
const scrollPositions = new Map();

/** Keep the position of each screen, and give the focus to the heading of a new one. */
function useScreenChange(screen) {
  useLayoutEffect(() => {
    const save = () => scrollPositions.set(screen, scrollY);
    addEventListener("scroll", save, { passive: true });
    let tries = 30;
    const target = scrollPositions.get(screen) ?? 0;
    // Answers arrive later than the route, so the page may not be long enough at first.
    const restore = () => {
      scrollTo(0, target);
      const heading = document.querySelector("h1");
      if ((!heading || scrollY < target) && (tries -= 1) > 0) requestAnimationFrame(restore);
      else if (heading && (document.activeElement === document.body || document.activeElement === null)) heading.focus({ preventScroll: true });
    };
    restore();
    return () => removeEventListener("scroll", save);
  }, [screen]);
}

function App() {
  const { path, query } = useRoute();
  const { data: overview } = useData("overview");
  const screen = screenOf(path, query);
  const place = path.slice(0, 4).join(" / ");
  useEffect(() => {
    document.title = [place, overview?.name, "coterie"].filter(Boolean).join(" – ");
  }, [place, overview?.name]);
  useScreenChange(path.join("/"));
  return html`<${Navigation} current=${path[0] ?? ""} overview=${overview} />
    <main>${screen ?? html`<${Heading} title="Unknown address" /><${Notice} kind="error" text="This address names no screen." /><a href=${linkTo([])}>Overview</a>`}</main>`;
}

// The cookie holds the token now, so it need not stand in the address.
if (!isExport && location.search) history.replaceState(null, "", location.pathname + location.hash);
history.scrollRestoration = "manual";
pollVersion();
render(html`<${App} />`, document.getElementById("app"));
