// --- Search

const entries = [
  ...data.steps.map((step) => ({ kind: step.kind, text: `${step.id} ${data.unique[step.unique].id} ${labelOf(step)} ${step.scopes.join(" ")}`, shown: `${step.id} ${data.unique[step.unique].id}: ${labelOf(step)}`, key: step.id, names: [step.id, data.unique[step.unique].id], open: () => showStep(step) })),
  ...data.values.map((value, index) => {
    const slot = slotOfValue.get(index);
    const id = slot === undefined ? "" : data.slots[slot].id + " ";
    return { kind: value.kind, text: `${id}${value.name} ${value.from} ${value.ty}`, shown: `${id}${value.name} ${value.ty} ${value.from}`, key: slot === undefined ? value.name : id.trim(), names: [id.trim(), value.name], open: () => showValue(index) };
  }),
  ...data.nodes.map((node, position) => ({ kind: "node", text: `${nodeName(node)} ${node.scope} ${node.fuses.join(" ")} ${node.source}`, shown: `${nodeName(node)} ${node.scope}`, key: "n-" + position, names: [], open: () => showNode(position) })),
  ...data.remarks.map((remark, index) => ({ kind: "remark", text: `${remark.pass} ${remark.what} ${remark.where} ${remark.why} ${remark.equals.join(" ")}`, shown: `${remark.pass}: ${remark.what}, ${remark.where}`, key: "r-" + index, names: [], open: () => showRemark(index) })),
  ...data.images.map((image, index) => ({ kind: "kernel", text: `${image.name} ${image.digest} ${image.kind}`, shown: `${image.name} ${image.digest.slice(0, 8)} (${image.kind})`, key: "k-" + image.digest.slice(0, 8), names: [image.name], open: () => showImage(index) })),
];
const MOST_RESULTS = 40;

function matches(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  const found = entries.filter((entry) => words.every((word) => entry.text.toLowerCase().includes(word)));
  const isWord = (entry) => entry.text.toLowerCase().split(/[\s,]+/).includes(words[0]);
  const rank = (entry) => entry.names.some((name) => name.toLowerCase() === words[0]) ? 0 : isWord(entry) ? 1 : 2;
  return found.map((entry) => [rank(entry), entry]).sort((a, b) => a[0] - b[0]).map(([, entry]) => entry);
}

function search() {
  const query = byId("search").value;
  const found = matches(query);
  const shown = found.slice(0, MOST_RESULTS);
  byId("results").replaceChildren(...shown.map((entry) => make("li", {}, make("button", { type: "button", onclick: () => { entry.open(); byId("detail").focus(); byId("detail").scrollIntoView(); } },
    make("span", { class: "kind" }, entry.kind), make("span", { class: "what mono" }, entry.shown)))));
  const more = found.length > shown.length ? `, the first ${shown.length} shown` : "";
  byId("matches").textContent = query.trim() === "" ? "" : `${found.length} found${more}`;
}

byId("search").addEventListener("input", search);
byId("search-section").addEventListener("keydown", (event) => {
  const buttons = [...byId("results").querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  if (event.key === "Enter" && event.target === byId("search") && buttons.length) { event.preventDefault(); buttons[0].click(); }
  if (event.key === "ArrowDown" && at + 1 < buttons.length) { event.preventDefault(); buttons[at + 1].focus(); }
  if (event.key === "ArrowUp" && at >= 0) { event.preventDefault(); (buttons[at - 1] ?? byId("search")).focus(); }
  if (event.key === "Escape") { byId("search").value = ""; search(); byId("search").focus(); }
});
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) { event.preventDefault(); byId("search").focus(); }
});

// --- Start

drawMap();
const nodeButtons = drawGraph();
drawRemarks();
layOut(Math.max(fitted(), 12));
if (stepButtons.length) roving(byId("timeline"), stepButtons);
if (slotRects.length) roving(byId("slots"), slotRects);
if (nodeButtons.length) roving(byId("graph"), nodeButtons);
const wanted = decodeURIComponent(location.hash.slice(1));
const first = entries.find((entry) => entry.key === wanted) ?? entries.find((entry) => entry.kind === "piece") ?? entries[0];
if (first) first.open();
// At first sight the whole map is shown, not what one piece touches of it.
if (!wanted) slotRects.forEach((rect) => rect.classList.remove("dim", "chosen"));
