"use strict";
// All text comes from the data and goes into the page as text nodes, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const MAP_HEIGHT = 380;
const KINDS = ["input", "boundary", "local", "output"];

/// An element with properties and children; strings become text.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function shownBytes(bytes) {
  for (const [shift, unit] of [[30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (bytes >= 2 ** shift) return (bytes / 2 ** shift).toFixed(1) + " " + unit;
  }
  return bytes + " B";
}

const hex = (offset) => "0x" + offset.toString(16);
const plural = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const slotOfValue = new Map(data.slots.map((slot, index) => [slot.value, index]));
const stepsOfUnique = data.unique.map((_, index) => data.steps.filter((step) => step.unique === index));
const labelOf = (step) => step.ops.join(", ");
const imageOf = new Map(data.images.map((image, index) => [image.digest, index]));
const stepAt = (position) => data.steps.find((step) => step.first <= position && position <= step.last);

// --- Facts and legend

for (const [name, value] of data.facts) {
  byId("facts").append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
}
for (const kind of KINDS) {
  const colour = make("span", { "aria-hidden": "true" });
  colour.style.background = `var(--${kind})`;
  byId("legend").append(make("li", {}, colour, kind));
}
const splitColour = make("span", { "aria-hidden": "true" });
splitColour.style.background = "var(--split)";
byId("legend").append(make("li", {}, splitColour, "split op"));

// --- A list in which arrow keys move the focus, and only one element is a tab stop

function roving(container, elements) {
  let current = 0;
  const stop = (index) => {
    elements[current].setAttribute("tabindex", "-1");
    current = index;
    elements[current].setAttribute("tabindex", "0");
  };
  elements.forEach((element, index) => {
    element.setAttribute("tabindex", index === 0 ? "0" : "-1");
    element.addEventListener("focus", () => stop(index));
  });
  container.addEventListener("keydown", (event) => {
    const last = elements.length - 1;
    const next = {
      ArrowRight: Math.min(current + 1, last), ArrowDown: Math.min(current + 1, last),
      ArrowLeft: Math.max(current - 1, 0), ArrowUp: Math.max(current - 1, 0), Home: 0, End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    elements[next].focus();
  });
}

// --- The timeline and the slot map share one horizontal scale

let unit = 0;
const stepButtons = data.steps.map((step) => {
  const kind = step.kind === "piece" ? "" : step.kind.split(" ")[0];
  const what = data.unique[step.unique];
  const button = make("button", {
    type: "button", class: kind, "aria-pressed": "false",
    "aria-label": `${step.id}, ${step.kind} ${what.id}: ${labelOf(step)}`,
    title: `${step.id}: ${labelOf(step)}`, onclick: () => showStep(step),
  });
  button.style.setProperty("--fill", `var(--u${step.unique % 6})`);
  return button;
});
byId("timeline").append(...stepButtons);

const slotRects = data.slots.map((slot) => {
  const rect = makeSvg("rect", { class: "slot " + slot.kind, role: "button", "aria-label": slotText(slot) });
  rect.addEventListener("pointerenter", () => hint(slotText(slot)));
  rect.addEventListener("focus", () => hint(slotText(slot)));
  rect.addEventListener("click", () => showValue(slot.value));
  rect.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    showValue(slot.value);
  });
  rect.append(makeSvg("title", {}));
  rect.firstChild.textContent = slotText(slot);
  return rect;
});

function slotText(slot) {
  const value = data.values[slot.value];
  return `${slot.id}: ${value.name}, ${value.ty}, ${shownBytes(slot.bytes)} (${slot.bytes} bytes), ${slot.kind}, ` +
    `at ${hex(slot.offset)}, live from ${place(slot.first)} to ${place(slot.last)}` + (value.from ? `, ${value.from}` : "");
}

function place(position) {
  const step = stepAt(position);
  return step ? `${step.id} (${position})` : String(position);
}

function hint(text) {
  byId("hint").textContent = text;
}

const here = makeSvg("rect", { class: "here", y: 0, height: MAP_HEIGHT, width: 0 });

function layOut(newUnit) {
  unit = newUnit;
  const width = Math.ceil(data.positions * unit);
  const scale = MAP_HEIGHT / Math.max(data.arena.bytes, 1);
  const map = byId("slots");
  map.setAttribute("width", width);
  map.setAttribute("height", MAP_HEIGHT);
  map.setAttribute("viewBox", `0 0 ${width} ${MAP_HEIGHT}`);
  byId("timeline").style.width = width + "px";
  data.steps.forEach((step, index) => {
    const wide = (step.last - step.first + 1) * unit;
    stepButtons[index].style.width = wide + "px";
    const lines = [step.id, data.unique[step.unique].id];
    stepButtons[index].replaceChildren();
    if (wide >= 28) stepButtons[index].append(lines[0], make("br"), lines[1]);
  });
  data.slots.forEach((slot, index) => {
    const height = Math.max(slot.bytes * scale, 1.5);
    const rect = slotRects[index];
    rect.setAttribute("x", slot.first * unit);
    rect.setAttribute("width", Math.max((slot.last - slot.first + 1) * unit, 2));
    rect.setAttribute("y", Math.max(MAP_HEIGHT - slot.offset * scale - height, 0));
    rect.setAttribute("height", height);
  });
  if (chosenStep) frameStep(chosenStep);
}

function drawMap() {
  const map = byId("slots");
  const axis = byId("axis");
  for (let tick = 0; tick <= 4; tick += 1) {
    const y = MAP_HEIGHT - (MAP_HEIGHT * tick) / 4;
    map.append(makeSvg("line", { x1: 0, x2: "100%", y1: y, y2: y }));
    const label = make("span", {}, shownBytes((data.arena.bytes * tick) / 4));
    const shift = tick === 0 ? -8 : tick === 4 ? 8 : 0;
    label.style.top = `calc(3rem + ${y + shift}px)`;
    axis.append(label);
  }
  map.append(...slotRects, here);
}

const fitted = () => Math.max(byId("scroll").clientWidth / Math.max(data.positions, 1), 4);
byId("zoom-in").addEventListener("click", () => layOut(Math.min(unit * 1.5, 96)));
byId("zoom-out").addEventListener("click", () => layOut(Math.max(unit / 1.5, Math.min(fitted(), 4))));
byId("zoom-fit").addEventListener("click", () => layOut(fitted()));

// --- Choosing

let chosenStep = null;

function choose({ step = null, slots = [] }) {
  chosenStep = step;
  markNode(null);
  stepButtons.forEach((button, index) => {
    button.setAttribute("aria-pressed", String(data.steps[index] === step));
  });
  const chosen = new Set(slots);
  slotRects.forEach((rect, index) => {
    rect.classList.toggle("chosen", chosen.has(index));
    rect.classList.toggle("dim", chosen.size > 0 && !chosen.has(index));
  });
  if (step) frameStep(step);
  else here.setAttribute("width", 0);
}

function frameStep(step) {
  here.setAttribute("x", step.first * unit);
  here.setAttribute("width", (step.last - step.first + 1) * unit);
}

function bringIntoView(first) {
  const scroll = byId("scroll");
  const x = first * unit;
  if (x < scroll.scrollLeft || x > scroll.scrollLeft + scroll.clientWidth - 60) {
    scroll.scrollLeft = Math.max(x - 40, 0);
  }
}

function detail(heading, key, ...children) {
  byId("detail-heading").textContent = heading;
  byId("detail-body").replaceChildren(...children);
  history.replaceState(null, "", "#" + key);
}

const link = (text, open) => make("button", { type: "button", class: "link", onclick: () => { open(); byId("detail").focus(); } }, text);
const factList = (pairs) => make("dl", {}, ...pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
const source = (text) => make("pre", { tabindex: "0" }, make("code", {}, text));

function table(caption, heads, rows) {
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell) =>
    make("td", { class: typeof cell === "number" ? "number" : "" }, typeof cell === "number" ? cell.toLocaleString("en") : cell))));
  return make("div", { class: "scroll-x", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body)));
}

// --- Details of a step

function showStep(step, sizeIndex) {
  const unique = data.unique[step.unique];
  const slots = step.operands.map((value) => slotOfValue.get(value)).filter((slot) => slot !== undefined);
  choose({ step, slots });
  bringIntoView(step.first);
  const uses = stepsOfUnique[step.unique];
  const parts = [factList([
    ["unique piece", `${unique.id}, used ${uses.length === 1 ? "once" : uses.length + " times"}`],
    ["iterates over", unique.over ?? "no symbol"],
    ["nodes", String(unique.nodes)],
    ["written in", step.scopes.length ? `${step.scopes[0]}${step.scopes.length > 1 ? " … " + step.scopes[step.scopes.length - 1] : ""}` : "—"],
    ["hash", make("code", {}, unique.hash.slice(0, 16))],
  ])];
  if (unique.error) parts.push(make("p", { class: "error" }, "It does not compile for this target: " + unique.error));
  else parts.push(...kernels(unique, sizeIndex));
  parts.push(make("details", {}, make("summary", {}, `Nodes (${step.last - step.first + 1})`), nodeTable(step)));
  parts.push(make("details", {}, make("summary", {}, `Operands (${unique.operands.length})`), operandTable(step, unique)));
  parts.push(make("details", { open: "" }, make("summary", {}, "IR"), source(unique.ir)));
  detail(`${step.id}: ${step.kind} ${unique.id}`, step.id, ...parts);
}

function nodeTable(step) {
  const rows = [];
  for (let at = step.first; at <= step.last && data.nodes[at]; at += 1) {
    const node = data.nodes[at];
    rows.push([link(nodeName(node), () => showNode(at)), node.scope || "—", node.fuses.join(", "), shownCount(node.operations), node.bytes_read, node.bytes_written]);
  }
  return table("Nodes of the step, at its largest", ["node", "written in", "fuses", "operations", "bytes read", "bytes written"], rows);
}

function exact(size) {
  const each = size.query_length;
  return each ? `${size.rows / each}x${each}` : String(size.rows);
}

function kernels(unique, sizeIndex) {
  const named = (size) => (size.general ? `any, up to ${size.rows}` : exact(size));
  const body = make("div", {});
  const start = sizeIndex ?? Math.max(unique.sizes.findIndex((size) => size.rows >= 8), 0);
  const draw = (index) => {
    const size = unique.sizes[index];
    const rows = size.launches.map((launch, at) => {
      const at_image = imageOf.get(launch.image), image = data.images[at_image];
      return [at + 1, launch.name, link(`${image.name} ${image.digest.slice(0, 8)}`, () => showImage(at_image)),
        launch.grid.join("\u00a0×\u00a0"), launch.bytes_read, launch.bytes_written, launch.operands.join(" ")];
    });
    body.replaceChildren(
      factList([
        ["read", `${shownBytes(size.bytes_read)}, of it ${shownBytes(size.weight_bytes)} weights`],
        ["written", shownBytes(size.bytes_written)],
        ["scratch", shownBytes(size.scratch)],
        ["alternatives", String(size.alternatives.length)],
        ["captured", [...new Set(size.launches.map((launch) => launch.capture))].join(", ")],
        ["artifact", make("code", {}, size.digest.slice(0, 16))],
        ["cache key", make("code", {}, size.cache_key)],
      ]),
      table(`${plural(size.launches.length, "launch", "launches")} at ${named(size)} rows; bytes are those of whole operands, states left out`,
        ["#", "computes", "kernel", "grid", "bytes read", "bytes written", "operands"], rows),
      size.first?.length ? table("Why each part is computed so, where nothing was measured", ["computes", "way", "why", "others"],
        size.first.map((first) => [first.name, first.way, first.why, first.others.join(", ") || "none"])) : "");
  };
  const select = make("select", { id: "size", onchange: (event) => draw(Number(event.target.value)) },
    ...unique.sizes.map((size, index) => make("option", { value: index }, named(size))));
  select.value = String(start);
  draw(start);
  return [make("h3", {}, "Kernels"), make("label", { for: "size" }, "Rows"), select, body];
}

function operandTable(step, unique) {
  const rows = unique.operands.map((operand, position) => {
    const index = step.operands[position];
    const value = index === null || index === undefined ? null : data.values[index];
    const slot = slotOfValue.get(index);
    return [position, operand.name, operand.kind, operand.ty,
      value ? link(value.name, () => showValue(index)) : "—",
      slot !== undefined ? data.slots[slot].id : value ? value.kind : "—", value ? value.from : ""];
  });
  return table("Operands of this use", ["#", "in the piece", "kind", "type", "in the model", "where", "from"], rows);
}

// --- Details of a value and of a kernel

function showValue(index) {
  const value = data.values[index];
  const slotIndex = slotOfValue.get(index);
  const slot = slotIndex === undefined ? null : data.slots[slotIndex];
  const users = data.steps.map((step) => {
    const kinds = step.operands.flatMap((operand, position) => operand === index ? [data.unique[step.unique].operands[position].kind] : []);
    return [step, kinds];
  }).filter(([, kinds]) => kinds.length > 0);
  choose({ slots: slot ? [slotIndex] : [] });
  if (slot) { bringIntoView(slot.first); hint(slotText(slot)); }
  const facts = [["type", make("code", {}, value.ty)], ["bytes", `${shownBytes(value.bytes)} (${value.bytes})`], ["kind", slot ? slot.kind : value.kind], ["from", value.from || "—"]];
  if (slot) facts.push(["slot", slot.id], ["offset", hex(slot.offset)], ["live", `${place(slot.first)} to ${place(slot.last)}`]);
  const isMade = (kind) => kind === "output" || kind === "local";
  const rows = users.map(([step, kinds]) => [link(step.id, () => showStep(step)), step.kind, kinds.some(isMade) ? "computes it" : "uses it"]);
  detail(`${value.name}${value.kind === "value" || value.kind === "input" ? "" : ": " + value.kind}`, slot ? slot.id : value.name, factList(facts),
    table(`Steps that use ${value.name}`, ["step", "kind", "how"], rows));
}

/// What a kernel takes of a multiprocessor.
function taken(of) {
  if (!of) return [];
  const held = of.blocks_of_multiprocessor;
  return [
    ["registers of a thread", String(of.registers)],
    ["stack of a thread", `${of.stack_bytes} B, ${plural(of.local_loads, "load", "loads")}, ${plural(of.local_stores, "store", "stores")}`],
    ["shared memory of a block", shownBytes(of.shared_bytes)],
    ["threads of a block", String(of.threads)],
    ["code", shownBytes(of.code_bytes)],
    ["blocks on a multiprocessor", held === undefined ? "not known" : `${held}, ${of.occupancy_percent}% of its threads, by ${of.limited_by}`],
  ];
}

function showImage(index) {
  const image = data.images[index];
  const users = data.unique.flatMap((unique, at) => {
    const sizes = unique.sizes.filter((size) => size.launches.some((launch) => launch.image === image.digest));
    return sizes.length ? [[link(unique.id, () => showStep(stepsOfUnique[at][0])), sizes.map((size) => size.general ? "any" : exact(size)).join(" ")]] : [];
  });
  choose({});
  const parts = [factList([["kind", image.kind], ["image", make("code", {}, image.digest.slice(0, 16))], ["may start early", image.programmatic ? "yes" : "no"], ...taken(image.resources)]),
    table("Used by", ["piece", "at rows"], users)];
  if (image.recipe !== null) parts.push(make("details", {}, make("summary", {}, "Launch recipe"), source(JSON.stringify(image.recipe, null, 2))));
  if (image.text) parts.push(make("details", { open: "" }, make("summary", {}, `Source (${image.language})`), source(image.text)));
  detail(`Kernel ${image.name}`, "k-" + image.digest.slice(0, 8), ...parts);
}
