// Canvases that share a time axis: lanes below it, zoom and pan by wheel, drag and keys.
// Times are whole numbers of step.unit_s seconds.
const { step } = data;
const COLORS = 7, NEUTRAL = 7; // colours of micro-batches, and of what belongs to none: --c0 ... --c7
const AXIS = 24, SPACE = 10, NEAR = 3, LEAST_VIEW = 100;
const FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const view = { from: 0, to: step ? step.length : 1 };
const charts = [];
let pointer = null; // time under the mouse
let paints = {};

function secondsText(seconds) {
  const [unit, scale] = [["s", 1], ["ms", 1e-3]].find(([, one]) => seconds >= one) || ["µs", 1e-6];
  return `${Number((seconds / scale).toPrecision(4))} ${unit}`;
}

function bytesText(count) {
  const [unit, scale] = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, one]) => count >= one) || ["B", 1];
  const number = count / scale;
  return `${number.toFixed(Number.isInteger(number) || (number >= 10 && scale < 2 ** 30) ? 0 : 2)} ${unit}`;
}

// Colours and patterns as the canvas takes them, from the page's style.
function readPaints() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  paints = {
    ink: value("--ink"), soft: value("--soft"), line: value("--line"), surface: value("--surface"), sunken: value("--sunken"),
    accent: value("--accent"), alarm: value("--alarm"), on: "#10151c",
    colors: [...Array(COLORS + 1).keys()].map((at) => value(`--c${at}`)),
    hatches: step ? step.spans.passes.map((pass) => hatch(pass, dark ? "rgba(12,16,22,.62)" : "rgba(12,18,28,.5)")) : [],
  };
}

// A pass's pattern, transparent but for its marks: backward stripes, recomputed dots, update lines; forward none.
function hatch(pass, ink) {
  if (pass === "forward") return null;
  const scale = devicePixelRatio || 1, tile = document.createElement("canvas");
  tile.width = tile.height = Math.round(6 * scale);
  const brush = tile.getContext("2d");
  brush.scale(tile.width / 6, tile.height / 6);
  brush.fillStyle = brush.strokeStyle = ink;
  brush.lineWidth = 1.5;
  brush.beginPath();
  if (pass === "backward") for (const shift of [-6, 0, 6]) { brush.moveTo(shift - 1, 7); brush.lineTo(shift + 7, -1); }
  else if (pass === "recompute") { brush.rect(1, 1, 2, 2); brush.rect(4, 4, 2, 2); }
  else { brush.moveTo(0, 2); brush.lineTo(6, 2); brush.moveTo(0, 5); brush.lineTo(6, 5); }
  if (pass === "recompute") brush.fill();
  else brush.stroke();
  const pattern = brush.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(6 / tile.width));
  return pattern;
}

// A canvas with lanes below a time axis: [{rank, height, draw(brush, lane, frame)}].
class Chart {
  constructor(id, makeLanes) {
    this.canvas = byId(id);
    this.brush = this.canvas.getContext("2d");
    this.makeLanes = makeLanes;
    this.layOut();
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => this.down(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { this.drag = null; });
    this.canvas.addEventListener("pointerleave", () => { pointer = null; redraw(); });
    this.canvas.addEventListener("dblclick", showWhole);
    this.canvas.addEventListener("keydown", keyPressed);
  }

  layOut() {
    const { canvas } = this, scale = devicePixelRatio || 1;
    this.width = canvas.parentElement.clientWidth - parseFloat(getComputedStyle(canvas.parentElement).paddingLeft) * 2;
    this.gutter = this.width < 620 ? 84 : 158;
    let y = AXIS;
    this.lanes = this.makeLanes().map((lane, at, all) => {
      if (at && all[at - 1].rank !== lane.rank) y += SPACE;
      const placed = { ...lane, y, first: !at || all[at - 1].rank !== lane.rank };
      y += lane.height + 2;
      return placed;
    });
    this.height = y + 2;
    canvas.style.height = `${this.height}px`;
    canvas.width = Math.round(this.width * scale);
    canvas.height = Math.round(this.height * scale);
  }

  x(time) {
    return this.gutter + ((time - view.from) / (view.to - view.from)) * (this.width - this.gutter);
  }

  time(x) {
    return view.from + ((x - this.gutter) / (this.width - this.gutter)) * (view.to - view.from);
  }

  draw() {
    const { brush } = this, scale = devicePixelRatio || 1;
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.clearRect(0, 0, this.width, this.height);
    brush.textBaseline = "middle";
    this.drawAxis();
    for (const lane of this.lanes) {
      brush.fillStyle = paints.sunken;
      brush.fillRect(this.gutter, lane.y, this.width - this.gutter, lane.height);
      lane.label(brush, lane, this);
      brush.save();
      brush.beginPath();
      brush.rect(this.gutter, lane.y - 2, this.width - this.gutter, lane.height + 4);
      brush.clip();
      lane.draw(brush, lane, this);
      brush.restore();
    }
    if (pointer !== null && pointer >= view.from && pointer <= view.to) {
      brush.fillStyle = paints.soft;
      brush.fillRect(Math.round(this.x(pointer)), AXIS - 4, 1, this.height - AXIS);
    }
  }

  drawAxis() {
    const { brush } = this, second = 1 / step.unit_s, wide = (view.to - view.from) / (this.width - this.gutter);
    const least = wide * 90 * step.unit_s, power = 10 ** Math.floor(Math.log10(least));
    const tick = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
    const digitsOf = (scale) => Math.max(0, -Math.floor(Math.log10(tick / scale) + 1e-9));
    const [unit, scale] = [["s", 1], ["ms", 1e-3]].find(([, one]) => view.to * step.unit_s >= one && digitsOf(one) < 3) || ["µs", 1e-6];
    const digits = digitsOf(scale);
    brush.font = `11px ${FONT}`;
    brush.textAlign = "left";
    for (let number = Math.ceil((view.from * step.unit_s) / tick); number * tick * second <= view.to; number++) {
      const x = Math.round(this.x(number * tick * second));
      brush.fillStyle = paints.line;
      brush.fillRect(x, 4, 1, this.height - 4);
      brush.fillStyle = paints.soft;
      const text = `${((number * tick) / scale).toFixed(digits)} ${unit}`;
      if (x + 4 + brush.measureText(text).width <= this.width) brush.fillText(text, x + 4, 11);
    }
  }

  laneAt(y) {
    return this.lanes.find((lane) => y >= lane.y - 1 && y < lane.y + lane.height + 1);
  }

  wheel(event) {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      event.preventDefault();
      pan(sideways / (this.width - this.gutter));
    } else if (event.deltaY < 0 || view.to - view.from < step.length) { // at the whole step the page scrolls on
      event.preventDefault();
      zoom(Math.exp(event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), this.time(Math.max(this.gutter, event.offsetX)));
    }
  }

  down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, from: view.from, to: view.to };
    this.point(event);
  }

  move(event) {
    if (!this.drag) return this.point(event);
    const time = ((this.drag.x - event.offsetX) / (this.width - this.gutter)) * (this.drag.to - this.drag.from);
    show(this.drag.from + time, this.drag.to + time);
  }

  point(event) {
    const lane = this.laneAt(event.offsetY), time = this.time(event.offsetX);
    pointer = event.offsetX >= this.gutter ? time : null;
    if (lane && pointer !== null) lane.point(lane, time, NEAR * ((view.to - view.from) / (this.width - this.gutter)));
    redraw();
  }
}

// The part of the step that is seen.
function show(from, to) {
  const length = Math.min(step.length, Math.max(LEAST_VIEW, to - from));
  view.from = Math.min(Math.max(0, from), step.length - length);
  view.to = view.from + length;
  redraw();
}

const showWhole = () => show(0, step.length);

function pan(share) {
  const time = share * (view.to - view.from);
  show(view.from + time, view.to + time);
}

function zoom(factor, around = (view.from + view.to) / 2) {
  const length = Math.min(step.length, Math.max(LEAST_VIEW, (view.to - view.from) * factor));
  const from = around - ((around - view.from) / (view.to - view.from)) * length;
  show(from, from + length);
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const chart of charts) chart.draw();
  });
}

function layOutAll() {
  readPaints();
  for (const chart of charts) chart.layOut();
  redraw();
}
