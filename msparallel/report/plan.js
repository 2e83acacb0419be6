// The page of a plan (msparallel/report/plan_data.py).
const TERM_COLORS = ["var(--c0)", "var(--c2)", "var(--c3)", "var(--c1)", "var(--c7)"];
const COLORS = 8, SVG = "http://www.w3.org/2000/svg";
let shown = 0, axis = null;

function draw(tag, settings, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(settings)) {
    if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (key === "color") element.style.setProperty("--c", value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

function drawSearch() {
  const { search, plans } = data;
  if (!search) return;
  byId("search").hidden = false;
  byId("search-head").textContent = search.fits ? "What a search found" : "Nothing that the rules allow fits";
  byId("search-text").textContent = search.text;
  byId("search-changes").append(...data.changes.map((change) => make("li", {}, change)));
  byId("search-panes").hidden = !search.fits;
  if (!search.fits) return;
  drawScatter();
  table(byId("candidates"), [
    { head: "place", text: (row) => row.name, key: (row) => row.at },
    { head: "mesh", text: (row) => row.mesh_text },
    { head: "step", number: true, text: (row) => row.tiles[0].value, key: (row) => -row.point.tokens },
    { head: "tokens/s", number: true, text: (row) => row.tiles[1].value, key: (row) => row.point.tokens },
    { head: "memory", number: true, text: (row) => row.point.gib_text, key: (row) => row.point.gib },
    { head: "settings", class: "after words", text: (row) => row.short },
  ], plans.map((one, at) => ({ ...one, at })), null, (line, row) => {
    line.classList.add("pick");
    line.dataset.plan = row.at;
    line.addEventListener("click", () => show(row.at));
  });
}

// Memory to the right, speed upwards.
function drawScatter() {
  const width = 560, height = 320, left = 64, bottom = 40, limit = data.plans[0].memory.limit / 2 ** 30;
  const right = Math.max(limit, ...data.plans.map((one) => one.point.gib)) * 1.08, top = Math.max(...data.plans.map((one) => one.point.tokens)) * 1.1;
  const x = (gib) => left + (gib / right) * (width - left - 12), y = (tokens) => height - bottom - (tokens / top) * (height - bottom - 14);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Tokens a second over memory" },
    draw("line", { class: "axis", x1: left, x2: width - 12, y1: y(0), y2: y(0) }), draw("line", { class: "axis", x1: left, x2: left, y1: 14, y2: y(0) }),
    draw("line", { class: "limit", x1: x(limit), x2: x(limit), y1: 14, y2: y(0) }),
    draw("text", { x: x(limit) - 4, y: 22, "text-anchor": "end" }, data.plans[0].memory.limit_text),
    draw("text", { x: width - 12, y: height - 6, "text-anchor": "end" }, "GiB of the fullest stage, high end"),
    draw("text", { x: 4, y: 22 }, "tokens/s"));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    svg.append(draw("text", { x: x(right * share), y: y(0) + 16, "text-anchor": "middle" }, (right * share).toFixed(0)));
    if (share) svg.append(draw("text", { x: left - 6, y: y(top * share * 0.9) + 4, "text-anchor": "end" }, Math.round(top * share * 0.9).toLocaleString("en")));
  }
  data.plans.forEach((one, at) => svg.append(draw("circle", {
    class: `point${one.fits ? "" : " over"}`, "data-plan": at, cx: x(one.point.gib), cy: y(one.point.tokens), r: at ? 7 : 6, color: at ? "var(--c0)" : "var(--c1)",
    tabindex: 0, role: "button", "aria-label": `${one.name}: ${one.mesh_text}, ${one.point.tokens_text}, ${one.point.gib_text}`,
    on: { click: () => show(at), keydown: (event) => { if (event.key === "Enter") show(at); } },
  }, draw("title", {}, `${one.name}: ${one.mesh_text}\n${one.point.tokens_text}, ${one.point.gib_text}`))));
  byId("scatter").replaceChildren(svg);
}

function show(at) {
  shown = Number(at);
  const one = data.plans[shown];
  for (const element of document.querySelectorAll("[data-plan]")) element.classList.toggle("shown", Number(element.dataset.plan) === shown);
  byId("verdict").className = one.fits ? "" : "differs";
  byId("verdict-text").textContent = one.verdict;
  byId("verdict-detail").textContent = `${one.name === "the recipe" ? "The recipe" : `Place ${one.name}`}: ${one.mesh_text}; ${one.settings}`;
  byId("verdict-typed").textContent = one.typed;
  byId("tiles").replaceChildren(...one.tiles.map((tile) => make("div", {}, make("dt", {}, tile.label), make("dd", {}, tile.value, " ", make("small", {}, tile.detail)))));
  drawMemory(one.memory);
  drawTime(one.time);
  byId("reasons").replaceChildren(...one.reasons.map((reason) => make("li", {}, reason)));
  drawPipeline(one.pipeline);
  drawAxes(one);
  if (data.plans.length > 1) choosePlan();
}

function choosePlan() {
  byId("plan-bar").hidden = false;
  choice("plan-choice", data.plans.map((one, at) => ({ value: at, text: one.name, title: one.mesh_text })), shown, show);
}

function drawMemory({ rows, limit, limit_text: limitText }) {
  byId("memory-legend").replaceChildren(...rows[0].parts.map((part, at) => make("span", {}, make("i", { color: TERM_COLORS[at] }), part.name)),
    make("span", {}, make("i", { class: "limit" }), `for a job, ${limitText}`));
  const end = Math.max(limit, ...rows.map((row) => row.high.bytes)) * 1.01;
  byId("memory-bars").replaceChildren(...rows.map((row) => {
    let from = 0;
    const track = make("div", { class: "track", role: "img", "aria-label": row.parts.map((part) => `${part.name} ${part.text}`).join(", ") });
    const place = (element, start, bytes) => {
      element.style.left = `${(start / end) * 100}%`;
      element.style.width = `${(bytes / end) * 100}%`;
      track.append(element);
    };
    row.parts.forEach((part, at) => {
      if (part.bytes) place(make("div", { class: "part", color: TERM_COLORS[at], title: `${part.name} ${part.text}` }), from, part.bytes);
      from += part.bytes;
    });
    place(make("div", { class: "band", title: `up to ${row.high.text}` }), row.total.bytes, row.high.bytes - row.total.bytes);
    const line = make("div", { class: "limit", title: limitText });
    line.style.left = `${(limit / end) * 100}%`;
    track.append(line);
    return make("div", { class: `memory-row${row.high.bytes > limit ? " over" : ""}` },
      make("div", { class: "who" }, `stage ${row.stage}`, make("small", {}, `${row.layers} layers`)), track,
      make("div", { class: "sum" }, make("b", {}, row.total.text), make("small", {}, `${row.low_text} to ${row.high.text}`)),
      make("div", { class: "values" }, ...row.parts.map((part) => make("span", {}, `${part.name} ${part.text}`))));
  }));
}

function drawTime(terms) {
  const whole = terms.reduce((sum, term) => sum + term.seconds, 0), most = Math.max(...terms.map((term) => term.seconds));
  byId("time-stack").replaceChildren(...terms.map((term, at) => {
    const piece = make("i", { class: "part", color: color(at, terms.length), title: `${term.name} ${term.text}` });
    piece.style.width = `${(term.seconds / whole) * 100}%`;
    return piece;
  }));
  table(byId("time-table"), [
    { head: "part", text: (row) => make("span", { class: "legend" }, make("span", {}, make("i", { color: color(row.at, terms.length) }), row.name)), key: (row) => row.at },
    { head: "takes", number: true, text: (row) => measured(row.text, row.seconds / most), key: (row) => row.seconds },
    { head: "of the step", number: true, text: (row) => row.share_text, key: (row) => row.seconds },
  ], terms.map((term, at) => ({ ...term, at })));
}

function drawPipeline(pipeline) {
  byId("pipeline-section").hidden = !pipeline;
  if (!pipeline) return;
  byId("pipeline-head").textContent = pipeline.title;
  const width = 1200, left = 64, row = pipeline.stages > 16 ? 12 : 24, height = pipeline.stages * (row + 4) + 4;
  const hatch = draw("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)" },
    draw("rect", { width: 5, height: 1.6, fill: "rgba(12, 18, 28, .5)" }));
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": pipeline.title }, draw("defs", {}, hatch));
  const y = (stage) => 4 + stage * (row + 4);
  for (let stage = 0; stage < pipeline.stages; stage++) {
    svg.append(draw("text", { x: 4, y: y(stage) + row / 2 + 4 }, `stage ${stage}`), draw("rect", { class: "row", x: left, y: y(stage), width: width - left, height: row }));
  }
  for (const [stage, micro, backward, start, end] of pipeline.tasks) {
    const box = { x: left + start * (width - left), y: y(stage), width: Math.max(0.5, (end - start) * (width - left) - 0.6), height: row };
    svg.append(draw("rect", { class: "task", ...box, color: `var(--c${micro % COLORS})` }, draw("title", {}, `stage ${stage}, micro-batch ${micro}, ${backward ? "backward" : "forward"}`)));
    if (backward) svg.append(draw("rect", { class: "hatch", ...box }));
  }
  byId("pipeline").replaceChildren(svg);
}

// tp is innermost, then cp, dp and pp.
function placeOf(rank, mesh) {
  const at = {};
  for (const name of ["tp", "cp", "dp", "pp"]) {
    at[name] = rank % mesh[name];
    rank = Math.floor(rank / mesh[name]);
  }
  return at;
}

function drawAxes(one) {
  const axes = one.axes.filter((each) => each.axis in one.mesh);
  axis = axes.some((each) => each.axis === axis) ? axis : axes.length ? axes[axes.length - 1].axis : "tp";
  choice("axis-choice", axes.map((each) => ({ value: each.axis, text: `${each.axis} ${each.degree}`, title: each.name })), axis, (value) => { axis = value; drawGrid(one); });
  drawGrid(one);
}

function drawGrid(one) {
  const { mesh, per_node: perNode } = one, size = mesh.pp * mesh.dp * mesh.cp * mesh.tp, grid = byId("grid");
  byId("axis-where").textContent = one.axes.map((each) => `${each.axis} ${each.degree} ${each.where}`).join("; ");
  grid.classList.toggle("dense", size > 32);
  grid.classList.toggle("tiny", size > 256);
  grid.dataset.shows = axis;
  grid.replaceChildren(...[...Array(size / perNode).keys()].map((node) => make("div", { class: "node" }, make("h3", {}, `server ${node}`),
    make("div", { class: "devices" }, ...[...Array(perNode).keys()].map((device) => {
      const rank = node * perNode + device, at = placeOf(rank, mesh);
      const words = Object.keys(mesh).filter((name) => mesh[name] > 1).map((name) => `${name}${at[name]}`).join(" ");
      return make("div", { class: "device", color: color(at[axis], mesh[axis]), title: `rank ${rank} ${words}` },
        make("span", { class: "rank" }, String(rank)), make("span", { class: "at" }, words));
    })))));
}

function drawRejected() {
  byId("rejected").hidden = !data.rejected.length;
  if (!data.rejected.length) return;
  table(byId("rejected-table"), [
    { head: "strategies", text: (row) => row.what },
    { head: "how many", number: true, text: (row) => row.count.toLocaleString("en"), key: (row) => row.count },
    { head: "why", class: "after words", text: (row) => row.reason },
    { head: "would do", class: "words", text: (row) => row.change },
  ], data.rejected);
}

drawHead();
drawSearch();
drawRejected();
show(data.plans.length > 1 && data.search && data.search.fits ? 1 : 0);
