// --- The graph, one layer of equal ones

const NODE = { width: 560, height: 36, gap: 12, pad: 26, left: 90, right: 60 };

/// The run of equal blocks of steps that stands for most: its first step, the steps of a block and how
/// many blocks there are; one block where no two are equal.
function equalBlocks(kinds) {
  let best = { start: 0, size: kinds.length, times: 1 };
  const saved = ({ size, times }) => size * (times - 1);
  for (let size = 1; size <= kinds.length / 2; size += 1) {
    for (let start = 0; start + 2 * size <= kinds.length; start += 1) {
      let times = 1;
      while (start + (times + 1) * size <= kinds.length
        && kinds.slice(start, start + size).every((kind, at) => kind === kinds[start + times * size + at])) times += 1;
      const found = { start, size, times };
      if (saved(found) > saved(best)) best = found;
    }
  }
  return best;
}

const equal = equalBlocks(data.steps.map((step) => step.unique));
const isFolded = (step) => equal.times > 1 && step >= equal.start + equal.size && step < equal.start + equal.size * equal.times;

/// The node that is drawn for the one at a position.
function drawnFor(position) {
  const node = data.nodes[position];
  if (!node || !isFolded(node.step)) return position;
  const first = data.steps[equal.start + ((node.step - equal.start) % equal.size)];
  return first.first + (position - data.steps[node.step].first);
}

const remarksOf = (node) => node.scope ? data.remarks.filter((remark) =>
  [remark.where, ...remark.equals].some((place) => place.endsWith(" at " + node.scope))) : [];
const nodeName = (node) => `${(node.results[0] ?? "").split(":")[0]} ${node.op}`.trim();
const nodeKind = (op) => op === "region" ? "region" : op.includes("matmul") ? "matmul" : op.includes(".") ? "custom" : "";
const nodeShapes = new Map();

function cut(text, most) {
  return text.length > most ? text.slice(0, most - 1) + "…" : text;
}

function drawGraph() {
  const map = byId("graph");
  const centre = NODE.left + NODE.width / 2;
  const tops = new Map();
  const [groups, edges, nodes] = [[], [], []];
  let y = 10;
  let equalTop = 0;
  data.steps.forEach((step, index) => {
    if (isFolded(index)) return;
    if (equal.times > 1 && index === equal.start) equalTop = y;
    const top = y;
    y += NODE.pad;
    for (let at = step.first; at <= step.last && data.nodes[at]; at += 1) {
      tops.set(at, y);
      y += NODE.height + NODE.gap;
    }
    const group = makeSvg("rect", { class: "group " + step.kind.split(" ")[0], x: NODE.left - 16, y: top, width: NODE.width + 32, height: y - top - 4, rx: 6 });
    group.style.setProperty("--fill", `var(--u${step.unique % 6})`);
    const title = makeSvg("text", { class: "soft", x: NODE.left - 8, y: top + 17 });
    title.textContent = `${step.id} ${step.kind} ${data.unique[step.unique].id}`;
    groups.push(group, title);
    y += 8;
    if (equal.times > 1 && index === equal.start + equal.size - 1) {
      const label = makeSvg("text", { class: "soft", x: NODE.left - 24, y: y + 10 });
      label.textContent = `these ${plural(equal.size, "step", "steps")} ${equal.times} times`;
      groups.push(makeSvg("rect", { class: "equal", x: NODE.left - 30, y: equalTop - 6, width: NODE.width + 60, height: y - equalTop + 24, rx: 8 }), label);
      y += 34;
    }
  });
  data.nodes.forEach((node, to) => {
    const end = tops.get(drawnFor(to));
    const isNext = isFolded(node.step);
    // Of the blocks that are left out, the second says what goes from one to the next.
    if (isNext && node.step >= equal.start + 2 * equal.size) return;
    for (const from of node.reads) {
      const start = tops.get(drawnFor(from));
      if (start === undefined || end === undefined) continue;
      if (isNext && (isFolded(data.nodes[from].step) || data.nodes[from].step < equal.start)) continue;
      const [a, b] = [start + NODE.height, end];
      let path = `M${centre} ${a} L${centre} ${b}`;
      if (isNext) {
        const x = NODE.left + NODE.width;
        const out = x + 40;
        path = `M${x} ${start + NODE.height / 2} C${out} ${start + NODE.height / 2} ${out} ${end + NODE.height / 2} ${x} ${end + NODE.height / 2}`;
      } else if (b - a > NODE.gap + NODE.pad + 12) {
        const out = Math.max(NODE.left - 24 - (b - a) / 12, 6);
        path = `M${NODE.left} ${start + NODE.height / 2} C${out} ${start + NODE.height / 2} ${out} ${end + NODE.height / 2} ${NODE.left} ${end + NODE.height / 2}`;
      }
      edges.push(makeSvg("path", { class: isNext ? "edge next" : "edge", d: path, "data-from": drawnFor(from), "data-to": drawnFor(to) }));
    }
  });
  for (const [position, top] of tops) {
    const node = data.nodes[position];
    const shape = makeSvg("g", { class: "node " + nodeKind(node.op), role: "button", "aria-label": `${nodeName(node)} ${node.scope}` });
    shape.append(makeSvg("rect", { x: NODE.left, y: top, width: NODE.width, height: NODE.height, rx: 5 }));
    const name = makeSvg("text", { x: NODE.left + 8, y: top + 15 });
    name.textContent = cut(node.fuses.length ? `${node.op}: ${node.fuses.join(", ")}` : node.op, 74);
    const below = makeSvg("text", { class: "soft", x: NODE.left + 8, y: top + 30 });
    below.textContent = cut(node.results.join(" "), 46);
    const scope = makeSvg("text", { class: "soft", x: NODE.left + NODE.width - 8, y: top + 30, "text-anchor": "end" });
    scope.textContent = cut(node.scope, 34);
    const title = makeSvg("title", {});
    title.textContent = `${nodeName(node)}, ${node.scope}`;
    shape.append(name, below, scope, title);
    shape.addEventListener("click", () => showNode(position));
    shape.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      showNode(position);
    });
    nodeShapes.set(position, shape);
    nodes.push(shape);
  }
  map.setAttribute("width", NODE.left + NODE.width + NODE.right);
  map.setAttribute("height", y + 10);
  map.append(...groups, ...edges, ...nodes);
  const count = plural(data.nodes.length, "node", "nodes");
  byId("graph-note").textContent = equal.times > 1
    ? `Of ${count} ${tops.size} are drawn: ${plural(equal.size, "step stands", "steps stand")} for all ${equal.times} that are equal, and dashed lines lead to the next.`
    : `${count}.`;
  return nodes;
}

function markNode(position) {
  const drawn = position === null ? -1 : drawnFor(position);
  for (const [at, shape] of nodeShapes) shape.classList.toggle("chosen", at === drawn);
  for (const edge of byId("graph").querySelectorAll(".edge")) {
    edge.classList.toggle("lit", edge.dataset.from === String(drawn) || edge.dataset.to === String(drawn));
  }
}

const shownCount = (count) => count === undefined ? "not known" : count.toLocaleString("en");

function showNode(position) {
  const node = data.nodes[position];
  const step = data.steps[node.step];
  choose({ step });
  bringIntoView(step.first);
  markNode(position);
  const scroll = byId("graph-scroll");
  const top = Number(nodeShapes.get(drawnFor(position))?.firstChild.getAttribute("y") ?? 0);
  if (top < scroll.scrollTop || top > scroll.scrollTop + scroll.clientHeight - 60) scroll.scrollTop = Math.max(top - 60, 0);
  const reads = node.reads.flatMap((from) => [link(nodeName(data.nodes[from]), () => showNode(from)), " "]);
  const parts = [factList([
    ["makes", make("code", {}, node.results.join(" ") || "nothing")],
    ["written in", [node.scope, node.source].filter(Boolean).join(", ") || "—"],
    ["step", link(`${step.id} ${step.kind}`, () => showStep(step))],
    ["reads", make("span", {}, ...reads, node.takes.join(" "))],
    ["fuses", node.fuses.join(", ") || "nothing"],
    ["operations", shownCount(node.operations)],
    ["bytes read", `${shownBytes(node.bytes_read)}, of it ${shownBytes(node.weight_bytes)} weights`],
    ["bytes written", shownBytes(node.bytes_written)],
  ]), make("p", { class: "note" }, "Operations and bytes are those of the largest step.")];
  const remarks = remarksOf(node);
  if (remarks.length) parts.push(remarkTable(`Remarks at ${node.scope}`, remarks));
  detail(`Node ${nodeName(node)}`, "n-" + position, ...parts);
}

// --- Remarks

function remarkTable(caption, remarks) {
  return table(caption, ["pass", "what", "where", "why", "times"], remarks.map((remark) =>
    [remark.pass, remark.what, make("code", {}, remark.where), remark.why, remark.equals.length + 1]));
}

function drawRemarks() {
  const select = byId("remarks-pass");
  const passes = [...new Set(data.remarks.map((remark) => remark.pass))];
  const of = (pass) => data.remarks.filter((remark) => !pass || remark.pass === pass);
  select.append(make("option", { value: "" }, `all (${data.remarks.length})`),
    ...passes.map((pass) => make("option", { value: pass }, `${pass} (${of(pass).length})`)));
  const draw = () => byId("remarks").replaceChildren(of(select.value).length
    ? remarkTable(select.value ? `Remarks of ${select.value}` : "Remarks of all passes", of(select.value))
    : make("p", { class: "note" }, "No pass ran: the text brought its plan."));
  select.addEventListener("change", draw);
  draw();
}

function showRemark(index) {
  const remark = data.remarks[index];
  choose({});
  const places = [remark.where, ...remark.equals].map((place) => [make("code", {}, place)]);
  detail(`${remark.pass}: ${remark.what}`, "r-" + index, make("p", {}, remark.why), table("Where", ["place"], places));
}

