// The page of a simulation (msparallel/report/simulation_data.py).

function drawVerdict() {
  const { verdict, changes } = data;
  if (!verdict) return;
  const section = byId("verdict");
  section.hidden = false;
  section.classList.add(verdict.kind);
  byId("verdict-text").textContent = verdict.text;
  byId("verdict-detail").textContent = verdict.detail;
  byId("changes").hidden = !changes.length;
  byId("change-list").append(...changes.map((change) => make("li", {}, change)));
  byId("waits").hidden = !verdict.waits.length;
  if (!verdict.waits.length) return;
  table(byId("wait-table"), [
    { head: "rank", text: (row) => make("span", {}, `${row.rank} `, make("small", {}, row.at)), key: (row) => row.rank },
    { head: "waits in", text: (row) => row.op },
    { head: "cell", class: "code words", text: (row) => make("span", {}, ...dotted(row.cell)), key: (row) => row.cell },
    { head: "of group", text: (row) => row.group },
    { head: "for rank", text: (row) => make("b", {}, row.missing), key: (row) => row.missing },
  ], verdict.waits);
}

function drawProof() {
  if (!data.losses.length && !data.gradients) return;
  byId("proof").hidden = false;
  const over = (row, text) => (row.over ? make("b", { class: "over" }, text, make("small", {}, " too much")) : text);
  table(byId("losses"), [
    { head: "step", number: true, text: (row) => String(row.step), key: (row) => row.step },
    { head: "one device", number: true, text: (row) => row.single, key: (row) => Number(row.single) },
    { head: "cluster", number: true, text: (row) => row.cluster, key: (row) => Number(row.cluster) },
    { head: "difference", number: true, text: (row) => over(row, row.apart_text), key: (row) => row.apart },
  ], data.losses);
  byId("copies").textContent = data.copies ? `Copies of one slice on several ranks are ${data.copies}.` : "";
  drawApart("gradients", "Gradients of the first step", "relative difference");
  drawApart("parameters", "Weights after the last step", "largest difference");
  byId("zero").hidden = !data.zero.length;
  byId("zero").children[0].textContent = `${data.zero.length} that are zero but for rounding, left out`;
  byId("zero").children[1].textContent = data.zero.join(", ");
}

function drawApart(id, what, how) {
  const found = data[id], head = byId(`${id}-head`);
  head.hidden = byId(id).hidden = !found;
  if (!found) return;
  head.replaceChildren(what, make("small", {}, ` ${found.rows.length < found.count ? `the ${found.rows.length} furthest apart of ${found.count}` : "furthest apart first"}, ${found.limit} allowed`));
  const most = Math.max(Number.MIN_VALUE, ...found.rows.map((row) => row.value));
  table(byId(id), [
    { head: "tensor", class: "code words", text: (row) => make("span", {}, ...dotted(row.name)), key: (row) => row.name },
    { head: how, number: true, text: (row) => make("span", { class: row.over ? "over" : "" }, measured(row.over ? `${row.text} too much` : row.text, row.value / most)), key: (row) => row.value },
  ], found.rows, { column: how, down: true });
}

function drawStep() {
  for (const id of ["step", "peak", "shares"]) byId(id).hidden = false;
  byId("links").hidden = !step.links.length;
  byId("step-head").replaceChildren(`A step on ${step.hardware}`, make("small", {}, " an estimate from its profile's numbers",
    data.changes.length ? "; of the small model, --timeline times the recipe as it is" : ""));
  byId("tiles").append(...step.tiles.map((tile) => make("div", {}, make("dt", {}, tile.label), make("dd", {}, tile.value, " ", make("small", {}, tile.detail)))));
  drawRanks();
  drawStepLegend();
  const { spans, memory } = step, count = (number) => number.toLocaleString("en");
  byId("rule").textContent = (spans.part
    ? `${count(spans.operators)} operators are drawn as ${count(spans.drawn)}: neighbours of one stream, pass, micro-batch and axes are one where together they take less than 1/${count(spans.part)} of the step (${secondsText((step.length / spans.part) * step.unit_s)}).`
    : `All ${count(spans.operators)} operators that take time are drawn.`)
    + (memory.part ? ` Of memory, each 1/${count(memory.part)} of the step has its highest number.` : "")
    + " A collective begins when its last member has come.";
  tell();
}

// Which ranks have rows.
function drawRanks() {
  const several = step.ranks.length > 1, first = step.ranks.filter((one) => one.shown), sets = byId("rank-sets");
  byId("ranks-label").hidden = byId("rank-choice").hidden = sets.hidden = !several;
  if (!several) return;
  const buttons = step.ranks.map((one) => make("button", { type: "button", title: one.at, "data-rank": one.rank, on: { click: () => {
    if (shown.has(one.rank) && shown.size > 1) shown.delete(one.rank);
    else shown.add(one.rank);
    update();
  } } }, String(one.rank)));
  function update() {
    for (const button of buttons) button.setAttribute("aria-pressed", shown.has(Number(button.dataset.rank)));
    layOutAll();
  }
  const set = (ranks) => () => {
    shown.clear();
    for (const one of ranks) shown.add(one.rank);
    update();
  };
  sets.hidden = first.length === step.ranks.length;
  sets.replaceChildren(make("button", { type: "button", on: { click: set(first) } }, "one of each stage"),
    make("button", { type: "button", on: { click: set(step.ranks) } }, "all"));
  byId("rank-choice").replaceChildren(...buttons);
  for (const button of buttons) button.setAttribute("aria-pressed", shown.has(Number(button.dataset.rank)));
}

const PASS_WORDS = { forward: "F forward", backward: "B backward", recompute: "R recomputed", update: "U update" };

function drawStepLegend() {
  const used = new Set(step.spans.kinds.map((kind) => step.spans.passes[kind[2]]));
  const colors = Math.min(COLORS, step.micro_batches);
  byId("step-legend").append(
    ...step.spans.passes.filter((pass) => used.has(pass)).map((pass) => make("span", {}, make("i", { class: `pass ${pass}` }), PASS_WORDS[pass])),
    make("span", { class: "micro" }, ...[...Array(colors).keys()].map((at) => make("i", { color: `var(--c${at})` })),
      step.micro_batches === 1 ? "the step's only micro-batch"
        : `micro-batch 0 ... ${colors - 1}${step.micro_batches > COLORS ? ", and so on" : ""}`),
    make("span", {}, make("i", { color: `var(--c${NEUTRAL})` }), "of no micro-batch"));
}

// What is selected, in words.
function tell() {
  byId("details").replaceChildren(...(selected ? spanWords(selected.row, selected.at) : [make("p", {},
    "Point at a bar to see its operator. The wheel, + and - zoom; dragging and arrow keys move; a double click or 0 shows the whole step.")]));
}

function item(label, ...value) {
  return make("div", {}, make("dt", {}, label), make("dd", {}, ...value));
}

function spanWords(row, at) {
  const [op, cell, pass, , bytes, count] = step.spans.kinds[row.kind[at]], message = messageOf(row, at), micro = row.micro[at];
  const name = step.spans.ops[op], said = step.spans.cells[cell];
  const items = [
    item("rank", `${row.rank} ${place(row.rank)}`),
    item("pass", `${PASS_WORDS[step.spans.passes[pass]].slice(2)}${micro < 0 ? "" : `, micro-batch ${micro}`}`),
    item("begins", secondsText(row.starts[at] * step.unit_s)),
    item("takes", secondsText((row.ends[at] - row.starts[at]) * step.unit_s)),
  ];
  if (message) {
    const [axes, ranks] = message, transfer = row.stream === "pipeline";
    items.push(item(count > 1 ? "bytes together" : "bytes", bytesText(bytes)), item("over", axes || "itself"));
    if (ranks.length) items.push(item(transfer ? "from, to" : "ranks", transfer ? ranks.join(" → ") : ranges(ranks)));
  }
  return [make("p", {}, make("b", {}, name), count > 1 ? ` (${count} operators)` : "", " ", make("code", {}, ...dotted(said || "the step"))), make("dl", {}, ...items)];
}

function select(row, at) {
  if (selected && selected.row === row && selected.at === at) return;
  selected = { row, at };
  tell();
}

function tellMemory(curve, time) {
  const at = Math.max(0, firstAbove(curve.times, time) - 1), peak = peakOf(curve.rank);
  selected = null;
  byId("details").replaceChildren(
    make("p", {}, make("b", {}, `${bytesText(curve.kib[at] * 1024)} alive`), ` on rank ${curve.rank} ${place(curve.rank)}`),
    make("dl", {}, item("at", secondsText(time * step.unit_s)), item("peak", `${peak.text} at ${peak.at_text}`),
      item("largest there", peak.tensors.slice(0, 3).map(tensorWords).join("; "))));
}

function keyPressed(event) {
  const acts = {
    ArrowLeft: () => pan(-0.1), ArrowRight: () => pan(0.1), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
    0: showWhole, Home: showWhole, ArrowUp: () => chooseRow(-1), ArrowDown: () => chooseRow(1), ",": () => chooseSpan(-1), ".": () => chooseSpan(1),
    Escape: () => { selected = null; tell(); redraw(); },
  };
  if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  acts[event.key]();
}

// The next row that is shown, at the time that is selected or in the middle of the view.
function chooseRow(by) {
  const seen = rows.filter((row) => shown.has(row.rank)), now = selected ? seen.indexOf(selected.row) : -1;
  const row = seen[(Math.max(now, by > 0 ? -1 : 0) + by + seen.length) % seen.length];
  const time = selected ? selected.row.starts[selected.at] : (view.from + view.to) / 2;
  choose(row, Math.max(0, firstAbove(row.starts, time) - 1));
}

function chooseSpan(by) {
  if (!selected) return chooseRow(1);
  const { row, at } = selected;
  choose(row, Math.min(row.starts.length - 1, Math.max(0, at + by)));
}

function choose(row, at) {
  select(row, at);
  const middle = (row.starts[at] + row.ends[at]) / 2, half = (view.to - view.from) / 2;
  if (row.starts[at] < view.from || row.ends[at] > view.to) show(middle - half, middle + half);
  redraw();
}

const SHARE_CLASSES = ["computes", "waits", "waits two", "waits three", "waits four"];
const shareClass = (at, count) => (at === 0 ? SHARE_CLASSES[0] : at === count - 1 ? "bubble" : SHARE_CLASSES[Math.min(at, SHARE_CLASSES.length - 1)]);

function drawShares() {
  const { columns, rows: ranks } = step.shares, classes = columns.map((_, at) => shareClass(at, columns.length));
  byId("share-legend").append(...columns.map((column, at) => make("span", {}, make("i", { class: `part ${classes[at]}` }), column)));
  table(byId("share-table"), [
    { head: "rank", text: (row) => make("span", {}, `${row.rank} `, make("small", {}, row.at)), key: (row) => row.rank },
    { head: "the step", class: "wide", text: (row) => make("div", { class: "stack" }, ...row.parts.map((part, at) => {
      const piece = make("i", { class: `part ${classes[at]}`, title: `${columns[at]} ${part.text}, ${part.seconds}` });
      piece.style.width = `${Math.max(0, part.share) * 100}%`;
      return piece;
    })), key: (row) => row.parts[0].share },
    ...columns.map((column, at) => ({ head: column, number: true, text: (row) => make("span", { title: row.parts[at].seconds }, row.parts[at].text), key: (row) => row.parts[at].share })),
    { head: "peak live", number: true, text: (row) => row.peak_text, key: (row) => row.peak },
  ], ranks);
}

function drawLinks() {
  if (!step.links.length) return;
  table(byId("link-table"), [
    { head: "link", text: (row) => row.name },
    { head: `sent by ${step.links[0].who} ranks`, number: true, text: (row) => row.bytes_text, key: (row) => row.bytes },
    { head: "busy part of the step", number: true, text: (row) => measured(row.share_text, Math.min(1, row.share)), key: (row) => row.share },
    { head: "on rank", number: true, text: (row) => String(row.rank), key: (row) => row.rank },
  ], step.links);
}

function drawPeak(rank) {
  const peak = peakOf(Number(rank)), most = Math.max(1, ...peak.tensors.map((row) => row.bytes));
  byId("peak-rest").textContent = peak.rest;
  table(byId("peak-tensors"), [
    { head: "tensors", number: true, text: (row) => `${row.count} x`, key: (row) => row.count },
    { head: "made by", class: "after", text: (row) => row.op },
    { head: "shape", text: (row) => `${row.dtype} ${row.shape}` },
    { head: "cell", class: "code", text: (row) => row.cell },
    { head: "together", number: true, text: (row) => measured(row.bytes_text, row.bytes / most), key: (row) => row.bytes },
  ], peak.tensors, { column: "together", down: true });
}

drawHead();
drawVerdict();
drawProof();
if (step) {
  readPaints();
  drawStep();
  charts.push(new Chart("timeline", spanLanes), new Chart("memory", memoryLanes));
  for (const [id, act] of [["zoom-in", () => zoom(0.6)], ["zoom-out", () => zoom(1 / 0.6)], ["zoom-whole", showWhole]]) byId(id).addEventListener("click", act);
  const peaks = step.ranks.filter((one) => one.shown).map((one) => peakOf(one.rank));
  const most = peaks.reduce((a, b) => (curves.get(b.rank).peak_kib > curves.get(a.rank).peak_kib ? b : a));
  choice("peak-choice", peaks.map((peak) => ({ value: peak.rank, text: `rank ${peak.rank}: ${peak.text}` })), most.rank, drawPeak);
  drawPeak(most.rank);
  drawShares();
  drawLinks();
  new ResizeObserver(layOutAll).observe(byId("step"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", layOutAll);
  redraw();
}
