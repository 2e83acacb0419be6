// The page of a dry run (msparallel/report/dryrun_data.py).
const UNKNOWN = -2;
const PART_COLORS = ["var(--c0)", "var(--c2)", "var(--c3)", "var(--c1)"];

function drawMemory() {
  const { rows, limit, limit_text: limitText } = data.memory;
  const names = rows.length ? rows[0].parts.map((part) => part.name) : [];
  byId("memory-legend").append(...names.map((name, at) => make("span", {}, make("i", { color: PART_COLORS[at] }), name)));
  if (limit) byId("memory-legend").append(make("span", {}, make("i", { class: "limit" }), `memory of the device, ${limitText}`));
  const end = Math.max(limit || 0, ...rows.map((row) => row.total.bytes), 1) * (limit ? 1.01 : 1);
  byId("memory-bars").append(...rows.map((row) => {
    let from = 0;
    const track = make("div", { class: "track", role: "img", "aria-label": row.parts.map((part) => `${part.name} ${part.text}`).join(", ") });
    row.parts.forEach((part, at) => {
      const piece = make("div", { class: "part", color: PART_COLORS[at], title: `${part.name} ${part.text}` });
      piece.style.left = `${(from / end) * 100}%`;
      piece.style.width = `${(part.bytes / end) * 100}%`;
      from += part.bytes;
      if (part.bytes) track.append(piece);
    });
    if (limit) {
      const line = make("div", { class: "limit", title: limitText });
      line.style.left = `${(limit / end) * 100}%`;
      track.append(line);
    }
    const over = limit && row.total.bytes > limit;
    const share = limit ? `${((row.total.bytes / limit) * 100).toFixed(0)} % of ${limitText}` : "";
    return make("div", { class: `memory-row${over ? " over" : ""}` },
      make("div", { class: "who" }, `stage ${row.stage}`, make("small", {}, `rank ${row.ranks}`), make("small", {}, `layers ${row.layers}`)),
      track,
      make("div", { class: "sum" }, make("b", {}, row.total.text), make("small", {}, over ? `too much: ${share}` : share)),
      make("div", { class: "values" }, ...row.parts.map((part) => make("span", {}, `${part.name} ${part.text}`)),
        make("span", {}, `compiled in ${row.compile}`)));
  }));
}

// The grid. `axis` colours it while no parameter is pointed at or kept.
let axis = (data.axes.find((one) => one.degree > 1) || data.axes[0]).axis;
let kept = null, pointed = null;
const cells = [];

function drawGrid() {
  const nodes = new Map();
  for (const device of data.devices) {
    const at = data.axes.filter((one) => one.degree > 1).map((one) => `${one.axis}${device.at[one.axis]}`).join(" ");
    const held = make("div", { class: "held" });
    const told = `rank ${device.rank}, ${data.axes.map((one) => `${one.name} ${device.at[one.axis]}`).join(", ")}${device.compiled ? ", compiled" : ""}`;
    const cell = make("div", { class: `device${device.compiled ? " compiled" : ""}`, "data-rank": device.rank, title: told },
      make("span", { class: "rank" }, String(device.rank)), make("span", { class: "at" }, at), held);
    cells.push({ cell, held });
    if (!nodes.has(device.node)) nodes.set(device.node, []);
    nodes.get(device.node).push(cell);
  }
  const grid = byId("grid");
  grid.classList.toggle("dense", data.devices.length > 32);
  grid.classList.toggle("tiny", data.devices.length > 256);
  grid.append(...[...nodes].map(([node, inside]) => make("div", { class: "node", "data-node": node },
    make("h3", {}, `node ${node}`), make("div", { class: "devices" }, ...inside))));
}

const SVG = "http://www.w3.org/2000/svg";
function picture(box) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 22 22");
  svg.setAttribute("aria-hidden", "true");
  const [top, bottom, left, right] = box;
  const rectangle = (name, x, y, width, height) => {
    const rect = document.createElementNS(SVG, "rect");
    for (const [key, value] of Object.entries({ class: name, x, y, width, height })) rect.setAttribute(key, value);
    svg.append(rect);
  };
  // A slice of a thousandth is still a line, inside the frame.
  const width = Math.max(2, (right - left) * 20), height = Math.max(2, (bottom - top) * 20);
  rectangle("whole", 1, 1, 20, 20);
  rectangle("mine", Math.min(1 + left * 20, 21 - width), Math.min(1 + top * 20, 21 - height), width, height);
  return svg;
}

function paint() {
  const parameter = pointed || kept;
  byId("grid").dataset.shows = parameter ? parameter.name : axis;
  if (parameter) paintSlices(parameter);
  else paintAxis();
  for (const line of document.querySelectorAll("#parameters tbody tr")) {
    line.classList.toggle("pointed", line.row === pointed);
    line.classList.toggle("kept", line.row === kept);
  }
}

function paintAxis() {
  const chosen = data.axes.find((one) => one.axis === axis);
  data.devices.forEach((device, at) => {
    const { cell, held } = cells[at];
    cell.classList.remove("absent");
    cell.style.setProperty("--c", color(device.at[axis], chosen.degree));
    held.replaceChildren();
  });
  byId("shown").replaceChildren(`Coloured by ${chosen.name} (${chosen.axis}). `,
    make("small", {}, "A dot marks a rank that was compiled."));
  const groups = [...Array(chosen.degree).keys()].slice(0, 16);
  byId("grid-legend").replaceChildren(...groups.map((at) => make("span", {}, make("i", { color: color(at, chosen.degree) }),
    `${axis}${at}: rank ${ranges(data.devices.filter((device) => device.at[axis] === at).map((device) => device.rank))}`)));
}

// A slice's text for a small cell: without brackets and the dims at the end that are whole; breaks between dims only.
function indexParts(text) {
  const dims = text.replace(/^\[|\]$/g, "").split(", ");
  while (dims.length > 1 && dims[dims.length - 1] === ":") dims.pop();
  return dims.flatMap((dim, at) => [make("span", { class: "unbroken" }, dim + (at < dims.length - 1 ? ", " : "")), make("wbr")]);
}

function paintSlices(parameter) {
  const count = parameter.slices.length, holders = parameter.slices.map(() => []);
  let unknown = 0;
  parameter.by_rank.forEach((slice, rank) => {
    const { cell, held } = cells[rank];
    cell.classList.toggle("absent", slice < 0);
    if (slice >= 0) {
      holders[slice].push(rank);
      cell.style.setProperty("--c", color(slice, count));
      held.replaceChildren(picture(parameter.slices[slice].box), make("span", {}, ...indexParts(parameter.slices[slice].text)));
    } else {
      cell.style.setProperty("--c", "var(--line)");
      unknown += slice === UNKNOWN;
      held.replaceChildren(make("span", {}, slice === UNKNOWN ? "not compiled" : "not here"));
    }
  });
  // Ranks of other stages hold slices of other layers.
  const stages = data.axes.find((one) => one.axis === "pp").degree;
  const perStage = data.devices.length / stages, where = stages > 1 ? " of a stage" : "";
  const copies = Math.max(0, ...holders.map((ranks) => ranks.filter((rank) => Math.floor(rank / perStage) === Math.floor(ranks[0] / perStage)).length));
  const told = count === 1 ? (copies === 1 ? "one rank has it" : `the same on ${copies} ranks${where}`)
    : `${count} different slices, each on ${copies === 1 ? "one rank" : `${copies} ranks`}${where}`;
  byId("shown").replaceChildren(make("b", {}, parameter.name),
    ` ${parameter.shape}${parameter.cut === "whole" ? "" : `, a device has ${parameter.part}`}: ${told}.`,
    unknown ? make("small", {}, ` ${unknown} ranks are of stages that were not compiled, or of a layout that only compiled ranks tell.`) : "");
  byId("grid-legend").replaceChildren(...(count > 8 ? ["The same colour is the same slice."]
    : parameter.slices.map((slice, at) => make("span", {}, make("i", { color: color(at, count) }), `${slice.text} rank ${ranges(holders[at])}`))));
}

function point(parameter) {
  pointed = parameter;
  paint();
}

function keep(parameter) {
  kept = kept === parameter ? null : parameter;
  pointed = null;
  history.replaceState(null, "", kept ? `#${encodeURIComponent(kept.name)}` : "#");
  paint();
}

const ROLES = [["weight", "Weights"], ["gradient", "Accumulated gradients"], ["optimizer", "Optimizer state"]];

function drawParameters(role) {
  const rows = data.parameters.filter((parameter) => parameter.role === role);
  table(byId("parameters"), [
    { head: "name", class: "name", text: (row) => make("button", { type: "button", class: "parameter",
      on: { focus: () => point(row), blur: () => point(null), click: () => keep(row) } }, ...dotted(row.name)), key: (row) => row.name },
    { head: "whole", text: (row) => row.shape },
    { head: "a device has", text: (row) => (row.cut === "whole" ? "all of it" : row.part) },
    { head: "cut", class: "words cut", text: (row) => make("span", { class: row.cut === "whole" ? "cut-none" : "" }, row.cut === "whole" ? "-" : row.cut), key: (row) => row.cut },
    { head: "size", number: true, text: (row) => row.bytes_text, key: (row) => row.bytes },
    { head: "count", number: true, text: (row) => String(row.count), key: (row) => row.count },
    { head: "stage", number: true, text: (row) => row.stages },
  ], rows, null, (line, row) => {
    line.row = row;
    line.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && point(row));
    line.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && point(null));
  });
  paint();
}

function drawCollectives() {
  const most = Math.max(1, ...data.collectives.map((row) => row.total));
  const sum = (links) => data.collectives.filter((row) => row.links === links).length;
  byId("traffic-note").textContent = data.collectives.length
    ? `${sum("inside a server")} kinds stay inside a server, ${sum("between servers")} go between servers. Stage tells which pipeline stages have a kind; ranks are those of the first compiled rank that has it. Point at a row to see them on the devices.`
    : "This step has none.";
  if (!data.collectives.length) return;
  table(byId("collectives"), [
    { head: "operator", text: (row) => row.op },
    { head: "for", text: (row) => row.purpose },
    { head: "over", text: (row) => row.axes },
    { head: "ranks", text: (row) => row.ranks, key: (row) => row.members[0] },
    { head: "links", text: (row) => make("span", { class: row.links === "between servers" ? "link-between" : "" }, row.links), key: (row) => row.links },
    { head: "a message", number: true, text: (row) => row.bytes_text, key: (row) => row.bytes },
    { head: "a step", number: true, text: (row) => `${row.count} x`, key: (row) => row.count },
    { head: "total", number: true, text: (row) => measured(row.total_text, row.total / most), key: (row) => row.total },
    { head: "stage", number: true, text: (row) => row.stages },
  ], data.collectives, { column: "total", down: true }, (line, row) => {
    const mark = (on) => row.members.forEach((rank) => cells[rank] && cells[rank].cell.classList.toggle("member", on));
    line.addEventListener("pointerenter", () => mark(true));
    line.addEventListener("pointerleave", () => mark(false));
  });
}

function drawStrategies() {
  const whole = data.strategies.filter((row) => !row.cut);
  const rows = byId("show-whole").checked ? data.strategies : data.strategies.filter((row) => row.cut);
  const total = whole.reduce((sum, row) => sum + row.count, 0);
  byId("show-whole-label").textContent = `also the ${total} that are whole on every device`;
  table(byId("strategies"), [
    { head: "layers", text: (row) => row.layers || "-" },
    { head: "cell", class: "code", text: (row) => row.cell || (row.layers ? "the layer" : "the model") },
    { head: "operators", text: (row) => row.ops },
    { head: "pieces of each dim", text: (row) => (row.cut ? row.pieces : "-") },
    { head: "meaning", class: "words", text: (row) => (row.cut ? row.meaning : "whole on every device") },
  ], rows, null, (line, row) => line.classList.toggle("whole", !row.cut));
}

function drawSearch() {
  const search = data.search;
  if (!search) return;
  byId("search").hidden = false;
  byId("search-note").textContent = `Strategies ${search.how}; by hand: those of the blocks, in semi_auto_parallel with the same degrees. Rank ${search.rank}.`
    + (search.refused ? ` The form by hand does not compile: ${search.refused}` : "");
  const cost = (key) => ({ number: true, text: (row) => row.values[key] });
  table(byId("search-costs"), [
    { head: "form", text: (row) => row.form },
    { head: "collectives of a step", ...cost("collective_bytes") },
    { head: "weights", ...cost("weights_bytes") },
    { head: "optimizer", ...cost("optimizer_bytes") },
    { head: "live at the peak", ...cost("peak_live_bytes") },
  ], search.costs);
  byId("search-bar").hidden = !search.rows.length;
  byId("show-same").addEventListener("change", drawSearched);
  drawSearched();
}

function drawSearched() {
  const { rows } = data.search;
  if (!rows.length) return;
  const same = rows.filter((row) => row.same).reduce((sum, row) => sum + row.count, 0);
  byId("show-same-label").textContent = `also the ${same} that are cut the same in both`;
  const form = (name) => ({ class: "words", key: (row) => row[name],
    text: (row) => make("span", {}, row[name], ...(row[`${name}_meaning`] ? [make("br"), make("small", {}, row[`${name}_meaning`])] : [])) });
  table(byId("searched"), [
    { head: "layers", text: (row) => row.layers || "-" },
    { head: "cell", class: "code words", text: (row) => row.cell },
    { head: "operator", text: (row) => row.op },
    { head: "chosen", ...form("chosen") },
    { head: "by hand", ...form("by_hand") },
  ], rows.filter((row) => !row.same || byId("show-same").checked), null, (line, row) => line.classList.toggle("whole", row.same));
}

function drawPeak(place) {
  const peak = data.peaks[place];
  const most = Math.max(1, ...peak.tensors.map((row) => row.bytes));
  const compiled = peak.compiled_layers ? `As compiled with ${peak.compiled_layers} layers on the stage; the peak itself is that of all layers. ` : "";
  byId("peak-note").textContent = compiled + peak.rest;
  table(byId("peak-tensors"), [
    { head: "tensors", number: true, text: (row) => `${row.count} x`, key: (row) => row.count },
    { head: "made by", class: "after", text: (row) => row.op },
    { head: "shape", text: (row) => `${row.dtype} ${row.shape}` },
    { head: "cell", class: "code", text: (row) => row.cell },
    { head: "together", number: true, text: (row) => measured(row.bytes_text, row.bytes / most), key: (row) => row.bytes },
  ], peak.tensors, { column: "together", down: true });
}

drawHead();
drawMemory();
drawGrid();
choice("axis-choice", data.axes.map((one) => ({ value: one.axis, text: `${one.axis} ${one.degree}`, title: one.name, disabled: one.degree === 1 && one.axis !== axis })),
  axis, (value) => { axis = value; kept = pointed = null; paint(); });
const roles = ROLES.filter(([role]) => data.parameters.some((parameter) => parameter.role === role));
choice("role-choice", roles.map(([value, text]) => ({ value, text })), roles.length ? roles[0][0] : "", drawParameters);
kept = data.parameters.find((parameter) => `#${encodeURIComponent(parameter.name)}` === location.hash) || null;
drawParameters(roles.length ? roles[0][0] : "weight");
drawCollectives();
byId("show-whole").addEventListener("change", drawStrategies);
drawStrategies();
drawSearch();
if (data.peaks.length) {
  choice("peak-choice", data.peaks.map((peak, place) => ({ value: place, text: `stage ${peak.stage}: ${peak.total_text} on rank ${peak.rank}` })), 0, drawPeak);
  drawPeak(0);
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && kept) keep(kept); });
