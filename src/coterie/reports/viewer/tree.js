// Tree of a task (…/tree): an icicle on a canvas, and an outline of the same nodes, which screen readers get.

import { formatCount, formatNumber, linkTo, replaceQuery, showInvisible } from "./api.js";
import { Facts, Heading, Legend, Loaded, Side, VirtualList, html, pathLink, toneOf } from "./parts.js";
import { Inspector } from "./path.js";
const { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } = htmPreact;

const MIN_COLUMN = 76;
const SIDES = ["", "chosen", "rejected", "chosen and rejected"];

// -- nodes ----------------------------------------------------------------------------------------

/** Return the d3 hierarchy of a tree. A node's data are the indices of a chain of turns with one child each. */
function layoutTree(data) {
  const children = data.id.map(() => []);
  data.parent.forEach((parent, index) => parent >= 0 && children[parent].push(index));
  const chainFrom = (first) => {
    const chain = [first];
    while (first !== 0 && children[chain.at(-1)].length === 1) chain.push(children[chain.at(-1)][0]);
    return chain;
  };
  const root = d3.hierarchy(chainFrom(0), (chain) => children[chain.at(-1)].map(chainFrom));
  // Heights are shares of the leaves, so that a zoom only scales them.
  d3.partition()(root.count());
  return root;
}

/** Return the nodes of a tree with what is drawn of them, and the node of each turn. */
function makeNodes(data) {
  const root = layoutTree(data);
  const nodes = root.descendants();
  const nodeOf = new Map();
  const values = data.value.filter((value) => value != null);
  const center = data.value[0] ?? values.reduce((sum, value) => sum + value, 0) / (values.length || 1);
  const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [center, center]);
  const spread = Math.max(center - low, high - center);
  for (const node of nodes) {
    const [first, last] = [node.data[0], node.data.at(-1)];
    for (const index of node.data) nodeOf.set(data.id[index], node);
    const value = data.value[last] ?? data.value[first];
    const speaker = data.speaker[first] < 0 ? "" : data.speakers[data.speaker[first]][1];
    Object.assign(node, {
      id: data.id[first],
      leaf: data.id[last],
      mean: value,
      tone: value == null ? "" : toneOf(value - center, spread),
      side: node.data.reduce((bits, index) => bits | data.side[index], 0),
      reasons: [...new Set(node.data.map((index) => data.left_out[index]).filter(Boolean))],
      label: first === 0 ? "task" : showInvisible(data.label[first] ?? "(hidden)"),
      text: first === 0 ? "task" : showInvisible(`${speaker}: ${data.label[first] ?? "(hidden)"}`),
      visits: data.visits[last],
      tokens: node.data.reduce((sum, index) => sum + (data.tokens[index] ?? 0), 0),
      reason: data.reason[last],
    });
  }
  return { root, nodes, nodeOf, ends: [low, center, high].map((value) => [toneOf(value - center, spread), value]) };
}

// -- screen ---------------------------------------------------------------------------------------

export function TreeScreen({ iteration, stage, task, query }) {
  const run = query.get("run");
  return html`<${Heading} title=${`Tree of ${task}`} trail=${[["Tasks", linkTo(["tasks"], { stage: `${iteration}/${stage}`, run })], [task, linkTo(["task", iteration, stage, task], { run })]]} />
    <${Loaded} name="tree" params=${{ iteration, stage, task, run }} view=${TreeBody} query=${query} />`;
}

function TreeBody({ data, query }) {
  const tree = useMemo(() => makeNodes(data), [data]);
  const [hovered, setHovered] = useState(null);
  const selected = tree.nodeOf.get(query.get("node")) ?? tree.root;
  const zoomed = tree.nodeOf.get(query.get("zoom")) ?? tree.root;
  const select = (node) => replaceQuery({ node: node === tree.root ? "" : node.id });
  const zoom = (node) => replaceQuery({ zoom: node === tree.root ? "" : node.id, node: node === tree.root ? "" : node.id });
  const entries = tree.ends.map(([tone, value], index) => [tone, `${formatNumber(value, 2)}${index === 1 ? " (root)" : ""}`]);
  return html`
    <p class="muted">${formatCount(data.id.length)} turns in ${formatCount(tree.nodes.length)} nodes; chains of turns without alternatives are one node.</p>
    <div class="tools"><${Legend} color="value" entries=${entries} /><p class="legend"><span class="swatch chosen">chosen</span> <span class="swatch rejected">rejected</span></p>
      <button onClick=${() => zoom(selected)}>Zoom to node</button><button disabled=${zoomed === tree.root} onClick=${() => zoom(zoomed.parent ?? tree.root)}>One level up</button><button disabled=${zoomed === tree.root} onClick=${() => zoom(tree.root)}>Whole tree</button></div>
    <div class="tree">
      <${Icicle} tree=${tree} zoomed=${zoomed} selected=${selected} onSelect=${select} onZoom=${zoom} onHover=${setHovered} />
      <div><${Outline} tree=${tree} selected=${selected} onSelect=${select} onZoom=${zoom} /><${NodeDetails} data=${data} node=${selected} run=${query.get("run")} /></div>
    </div>
    <${Inspector} facts=${nodeFacts(hovered ?? selected)} />`;
}

function nodeFacts(node) {
  return [["node", node.text.slice(0, 60)], ["value", formatNumber(node.mean)], ["visits", formatCount(node.visits)], ["tokens", formatCount(node.tokens)], ["side", SIDES[node.side]], ["left out", node.reasons.join(", ").replaceAll("_", " ")], ["ended by", node.reason]];
}

function NodeDetails({ data, node, run }) {
  const credits = Object.entries(data.credit ?? {}).filter(([name]) => !["value", "visits"].includes(name)).map(([name, values]) => [name, values[node.data.at(-1)]]);
  return html`<section class="details" aria-label="Selected node"><h2>${node.text}</h2>
    <${Facts} facts=${[...nodeFacts(node).slice(1), ...credits]} />
    <p class="links">${node.parent && html`<a class="button" href=${pathLink(data.iteration, data.stage, data.task, node.leaf, { run })}>Dialogue to here</a><a class="button" href=${linkTo(["turn", node.id], { run })}>What it trained</a>`}</p>
    ${node.data.length > 1 && html`<ol class="chain">${node.data.map((index) => html`<li>${showInvisible(data.label[index] ?? "(hidden)")} <${Side} side=${SIDES[data.side[index]]} /></li>`)}</ol>`}
  </section>`;
}

// -- icicle ---------------------------------------------------------------------------------------

/** Return the rectangle of a node in pixels, or null outside of the zoomed subtree and window. */
function rectangleOf(node, zoomed, width, height, column) {
  const depth = node.depth - zoomed.depth;
  if (depth < 0 || node.x1 <= zoomed.x0 || node.x0 >= zoomed.x1 || depth * column >= width) return null;
  const scale = height / (zoomed.x1 - zoomed.x0);
  const [top, bottom] = [(Math.max(node.x0, zoomed.x0) - zoomed.x0) * scale, (Math.min(node.x1, zoomed.x1) - zoomed.x0) * scale];
  return { left: depth * column, top, width: column, height: bottom - top };
}

function drawBorder(context, { left, top, width, height }, side, colors) {
  if (!side || height < 3) return;
  const line = Math.min(3, height / 3);
  context.lineWidth = line;
  context.setLineDash(side === 2 ? [4, 3] : []);
  context.strokeStyle = side === 2 ? colors.n4 : colors.p4;
  context.strokeRect(left + line, top + line, width - 2 * line, height - 2 * line);
  context.setLineDash([]);
}

function drawIcicle(canvas, tree, zoomed, selected) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const ratio = devicePixelRatio || 1;
  if (canvas.width !== width * ratio || canvas.height !== height * ratio) [canvas.width, canvas.height] = [width * ratio, height * ratio];
  const style = getComputedStyle(document.documentElement);
  const names = ["page", "ink", "rule", "accent", "plain", "n1", "n2", "n3", "n4", "p1", "p2", "p3", "p4", "edge-n", "edge-p"];
  const colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const column = Math.max(MIN_COLUMN, width / (zoomed.height + 1));
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = colors.page;
  context.fillRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const node of zoomed.descendants()) {
    const box = rectangleOf(node, zoomed, width, height, column);
    if (!box || box.height < 0.4) continue;
    context.fillStyle = colors[node.tone || "plain"];
    const gap = box.height > 3 ? 1 : 0;
    context.fillRect(box.left, box.top, box.width - 1, box.height - gap);
    drawBorder(context, { ...box, width: box.width - 1, height: box.height - gap }, node.side, { n4: colors["edge-n"], p4: colors["edge-p"] });
    if (box.height < 14) continue;
    context.fillStyle = colors.ink;
    const isCut = (node.depth - zoomed.depth + 2) * column > width + 1 && node.children;
    const text = `${isCut ? "… " : ""}${node.mean == null ? "" : `${formatNumber(node.mean, 2)} `}${node.label}`;
    context.fillText(text.slice(0, Math.floor((box.width - 12) / 6.2)), box.left + 6, box.top + Math.min(box.height / 2, 40));
  }
  const box = rectangleOf(selected, zoomed, width, height, column);
  if (!box) return;
  context.lineWidth = 2;
  context.strokeStyle = colors.ink;
  context.strokeRect(box.left + 1, box.top + 1, Math.max(4, box.width - 3), Math.max(4, box.height - 2));
}

function nodeAt(event, zoomed) {
  const { left, top, width, height } = event.currentTarget.getBoundingClientRect();
  const column = Math.max(MIN_COLUMN, width / (zoomed.height + 1));
  const depth = zoomed.depth + Math.floor((event.clientX - left) / column);
  const position = zoomed.x0 + ((event.clientY - top) / height) * (zoomed.x1 - zoomed.x0);
  let node = zoomed;
  while (node && node.depth < depth) node = node.children?.find((child) => child.x0 <= position && position < child.x1);
  return node;
}

function Icicle({ tree, zoomed, selected, onSelect, onZoom, onHover }) {
  const [canvas, draw] = [useRef(null), useRef(null)];
  draw.current = () => drawIcicle(canvas.current, tree, zoomed, selected);
  useLayoutEffect(() => draw.current(), [tree, zoomed, selected]); // an effect would wait for the next frame
  useEffect(() => {
    const redraw = () => draw.current();
    const [observer, scheme] = [new ResizeObserver(redraw), matchMedia("(prefers-color-scheme: dark)")];
    observer.observe(canvas.current);
    scheme.addEventListener("change", redraw);
    return () => (observer.disconnect(), scheme.removeEventListener("change", redraw));
  }, []);
  const click = (event) => {
    const node = nodeAt(event, zoomed);
    if (node) (node === selected ? onZoom : onSelect)(node);
  };
  return html`<canvas ref=${canvas} class="icicle" aria-hidden="true" onClick=${click} onMouseMove=${(event) => onHover(nodeAt(event, zoomed) ?? null)} onMouseLeave=${() => onHover(null)}></canvas>`;
}

// -- outline --------------------------------------------------------------------------------------

/** Return the visible nodes in order. */
function visibleNodes(root, open) {
  const [visible, stack] = [[], [root]];
  while (stack.length) {
    const node = stack.pop();
    visible.push(node);
    if (node.children && open.has(node.id)) stack.push(...[...node.children].reverse());
  }
  return visible;
}

/** Return the node after another whose text begins with what was typed, or else contains it. */
function findTyped(nodes, current, typed) {
  const start = nodes.indexOf(current) + (typed.length === 1 ? 1 : 0);
  const ring = [...nodes.slice(start), ...nodes.slice(0, start)];
  return ring.find(({ text }) => text.toLowerCase().startsWith(typed)) ?? ring.find(({ text }) => text.toLowerCase().includes(typed));
}

function Outline({ tree, selected, onSelect, onZoom }) {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const open = useRef(new Set([tree.root.id])).current;
  const typing = useRef({ text: "", time: 0 });
  // The selected node is always in view.
  for (const ancestor of selected.ancestors().slice(1)) open.add(ancestor.id);
  const visible = visibleNodes(tree.root, open);
  const active = visible.indexOf(selected);
  const setOpen = (node, isOpen) => void (open[isOpen ? "add" : "delete"](node.id), redraw());
  const type = (event) => {
    const isNew = event.timeStamp - typing.current.time > 800;
    typing.current = { text: (isNew ? "" : typing.current.text) + event.key.toLowerCase(), time: event.timeStamp };
    return findTyped(tree.nodes, selected, typing.current.text);
  };
  const onKeyDown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isOpen = open.has(selected.id);
    const target = {
      ArrowDown: () => visible[active + 1],
      ArrowUp: () => visible[active - 1],
      ArrowRight: () => (selected.children && !isOpen ? setOpen(selected, true) : selected.children?.[0]),
      ArrowLeft: () => (selected.children && isOpen ? setOpen(selected, false) : selected.parent),
      Home: () => visible[0],
      End: () => visible.at(-1),
      Enter: () => onZoom(selected),
    }[event.key] ?? (event.key.length === 1 ? () => type(event) : null);
    if (!target) return;
    event.preventDefault();
    const node = target();
    if (node) onSelect(node);
  };
  const row = (index) => {
    const node = visible[index];
    const siblings = node.parent?.children ?? [node];
    return html`<div role="treeitem" key=${node.id} id=${`node-${node.id}`} class="node" style=${{ paddingInlineStart: `${8 + 14 * Math.min(node.depth, 12)}px` }} aria-level=${node.depth + 1} aria-setsize=${siblings.length} aria-posinset=${siblings.indexOf(node) + 1}
      aria-selected=${node === selected} aria-expanded=${node.children ? open.has(node.id) : null} onClick=${() => (node === selected && node.children ? setOpen(node, !open.has(node.id)) : onSelect(node))}>
      <span class="tone ${node.tone}">${formatNumber(node.mean, 2)}</span> ${node.side > 0 && html`<${Side} side=${SIDES[node.side]} /> `}${node.text}${node.data.length > 1 && html` <small class="muted">+${node.data.length - 1}</small>`}</div>`;
  };
  return html`<${VirtualList} className="outline" role="tree" aria-label="Outline of the tree" tabindex="0" aria-activedescendant=${`node-${selected.id}`} count=${visible.length} rowHeight=${28} row=${row} scrollTo=${active} onKeyDown=${onKeyDown} />`;
}
