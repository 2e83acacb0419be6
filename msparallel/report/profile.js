// The page of a profile (msparallel/report/profile_data.py).
const PART_COLORS = ["var(--c0)", "var(--c1)", "var(--c4)", "var(--line)"];
const SVG = "http://www.w3.org/2000/svg";

function draw(tag, settings, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(settings)) {
    if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function drawFindings() {
  const errors = data.findings.filter((one) => one.severity === "error").length;
  const count = data.findings.length;
  byId("verdict").className = errors ? "differs" : count ? "todo" : "";
  byId("verdict-text").textContent = !count ? "Nothing stands out" : errors ? "A device computes something wrong"
    : `${count} ${count === 1 ? "thing" : "things"} to change, what could gain most first`;
  byId("findings").replaceChildren(...data.findings.map((one) => make("li", { class: one.severity },
    make("span", { class: "rule" }, one.rule), make("span", { class: "gain" }, one.gain_text),
    make("p", {}, one.text),
    make("p", { class: "do" }, one.remedy),
    ...(one.changes ? [make("p", { class: "changes" }, one.changes + (one.planned ? `  (${one.planned})` : ""))] : []),
    ...one.evidence.map((text) => make("p", { class: "evidence" }, text)))));
}

function drawRanks(order) {
  byId("steps").hidden = !data.ranks.length;
  if (!data.ranks.length) return;
  const keys = { rank: (row) => row.rank, step: (row) => -row.step.us };
  data.parts.forEach((name, at) => { keys[name] = (row) => -row.parts[at].us; });
  const rows = [...data.ranks].sort((a, b) => keys[order](a) - keys[order](b) || a.rank - b.rank);
  const longest = Math.max(...rows.map((row) => row.step.us));
  byId("rank-bars").classList.toggle("dense", rows.length > 40);
  byId("rank-bars").dataset.order = order;
  byId("rank-bars").replaceChildren(...rows.map((row) => {
    const stack = make("div", { class: "stack", role: "img", "aria-label": row.parts.map((part, at) => `${data.parts[at]} ${part.text}`).join(", ") },
      ...row.parts.map((part, at) => {
        const piece = make("i", { class: "part", color: PART_COLORS[at], title: `${data.parts[at]} ${part.text}` });
        piece.style.width = `${(part.us / longest) * 100}%`;
        return piece;
      }));
    return make("div", { class: `rank-row${row.named ? " named" : ""}`, "data-rank": row.rank },
      make("div", { class: "who" }, make("b", {}, `rank ${row.rank}`), make("small", {}, row.group === "all ranks" ? "" : row.group)),
      stack, make("div", { class: "sum" }, row.step.text));
  }));
}

function drawSteps() {
  if (!data.ranks.length) return;
  byId("step-legend").replaceChildren(...data.parts.map((name, at) => make("span", {}, make("i", { color: PART_COLORS[at] }), name)));
  const more = data.more_ranks ? ` ${data.more_ranks} more ranks are not drawn.` : "";
  byId("rank-note").textContent = `Measured; means of the steps. Communication behind computation is no part of its own. Red: named by a finding.${more}`;
  choice("order-choice", [{ value: "rank", text: "rank" }, { value: "step", text: "longest step" },
    ...data.parts.map((name) => ({ value: name, text: name }))], "rank", drawRanks);
  drawRanks("rank");
}

function drawCompared() {
  byId("compared").hidden = !data.compared.length && !data.axes.length;
  const text = (value) => (value ? value.text : "-");
  if (data.compared.length) {
    table(byId("compared-table"), [
      { head: "part of a step", text: (row) => row.part },
      { head: "estimated", number: true, text: (row) => text(row.estimated), key: (row) => (row.estimated ? row.estimated.s : -1) },
      { head: "measured", number: true, text: (row) => text(row.measured), key: (row) => (row.measured ? row.measured.s : -1) },
      { head: "measured / estimated", number: true, text: (row) => (row.estimated && row.measured && row.estimated.s ? (row.measured.s / row.estimated.s).toFixed(2) : "-") },
    ], data.compared);
  }
  if (data.axes.length) {
    table(byId("axes-table"), [
      { head: "collectives of axis", text: (row) => row.axis },
      { head: "take a step", number: true, text: (row) => row.takes.text, key: (row) => row.takes.us },
      { head: "of it waiting", number: true, text: (row) => row.waiting },
    ], data.axes);
  }
}

// From red at half of the median over yellow to green at the median and above.
function speedColor(speed, median) {
  const share = Math.max(0, Math.min(1, (speed / median - 0.5) * 2));
  return `hsl(${Math.round(share * 130)} 58% ${Math.round(50 - share * 6)}%)`;
}

function drawWire(at) {
  const wire = data.wires[Number(at)], ranks = wire.ranks, size = ranks.length, left = 34, cell = Math.max(4, Math.min(40, 600 / size));
  const place = new Map(ranks.map((rank, index) => [rank, index]));
  const should = wire.expected ? `; the machine's profile says ${wire.expected.toPrecision(3)}` : "";
  byId("wire-note").textContent = `${wire.links.toLocaleString("en")} links, from ${wire.lowest.toPrecision(3)} to ${wire.highest.toPrecision(3)} GB/s, the median is ${wire.median.toPrecision(3)}${should}. Rows send, columns receive. Green: the median and above; red: half of it and below.`;
  const svg = draw("svg", { viewBox: `0 0 ${left + size * cell} ${left + size * cell}`, role: "img", "aria-label": `${wire.transport} bandwidth` });
  svg.append(draw("rect", { class: "empty", x: left, y: left, width: size * cell, height: size * cell }));
  const every = Math.ceil(size / 16);
  ranks.forEach((rank, index) => {
    if (index % every) return;
    svg.append(draw("text", { x: left + index * cell, y: left - 6 }, String(rank)), draw("text", { x: 2, y: left + (index + 0.7) * cell }, String(rank)));
  });
  const detail = byId("heat-detail");
  for (const [source, target, speed, mb] of wire.cells) {
    const told = `rank ${source} to rank ${target}: ${speed.toPrecision(3)} GB/s, ${mb.toLocaleString("en")} MB`;
    svg.append(draw("rect", { class: "cell", x: left + place.get(target) * cell, y: left + place.get(source) * cell, width: cell - 0.5, height: cell - 0.5,
      fill: speedColor(speed, wire.median), "data-link": `${source}-${target}`, on: { mouseenter: () => { detail.textContent = told; } } }, draw("title", {}, told)));
  }
  byId("heat").dataset.transport = wire.transport;
  byId("heat").replaceChildren(svg);
  table(byId("wire-table"), [
    { head: "from", number: true, text: (row) => String(row[0]), key: (row) => row[0] },
    { head: "to", number: true, text: (row) => String(row[1]), key: (row) => row[1] },
    { head: "GB/s", number: true, text: (row) => row[2].toPrecision(3), key: (row) => row[2] },
    { head: "MB", number: true, text: (row) => row[3].toLocaleString("en"), key: (row) => row[3] },
  ], [...wire.cells].sort((a, b) => a[2] - b[2]).slice(0, 20));
}

function drawWires() {
  byId("wires").hidden = !data.wires.length;
  if (!data.wires.length) return;
  choice("wire-choice", data.wires.map((wire, at) => ({ value: at, text: wire.transport })), 0, drawWire);
  drawWire(0);
}

function drawOperators() {
  byId("operators").hidden = !data.operators.length;
  if (!data.operators.length) return;
  const most = data.operators[0].a_step.us || 1;
  table(byId("operator-table"), [
    { head: "operator", class: "code", text: (row) => row.type },
    { head: "core", text: (row) => row.core },
    { head: "launches", number: true, text: (row) => row.count.toLocaleString("en"), key: (row) => row.count },
    { head: "a step", number: true, text: (row) => measured(row.a_step.text, row.a_step.us / most), key: (row) => row.a_step.us },
    { head: "share", number: true, text: (row) => row.share_text, key: (row) => row.share },
    { head: "matrix unit", number: true, text: (row) => (row.cube === null ? "-" : `${Math.round(row.cube * 100)}%`), key: (row) => (row.cube === null ? -1 : row.cube) },
  ], data.operators);
}

function drawRest() {
  byId("gaps").hidden = !data.gaps.length;
  table(byId("gap-table"), [
    { head: "rank", number: true, text: (row) => String(row.rank), key: (row) => row.rank },
    { head: "for", number: true, text: (row) => row.gap.text, key: (row) => row.gap.us },
    { head: "between", class: "code after", text: (row) => row.before },
    { head: "and", class: "code", text: (row) => row.after },
  ], data.gaps);
  const tests = data.tests.flatMap((test) => test.rows.map((row) => ({ ...row, file: test.file })));
  byId("tests").hidden = !tests.length;
  table(byId("test-table"), [
    { head: "file", text: (row) => row.file },
    { head: "bytes", number: true, text: (row) => row.bytes.toLocaleString("en"), key: (row) => row.bytes },
    { head: "GB/s, recomputed", number: true, text: (row) => row.gb_s.toPrecision(3), key: (row) => row.gb_s },
    { head: "result", class: "after", text: (row) => row.result },
  ], tests);
  byId("left-out").hidden = !data.left_out.length;
  table(byId("left-table"), [
    { head: "file", class: "code", text: (row) => row.file },
    { head: "why", class: "words", text: (row) => row.reason },
  ], data.left_out);
}

drawHead();
drawFindings();
drawSteps();
drawCompared();
drawWires();
drawOperators();
drawRest();
