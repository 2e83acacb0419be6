// What every rank of a step does when, and what it keeps alive: lanes for chart.js.
// Rows are drawn from arrays in the order of time; what is narrower than a pixel is drawn a column at a time, so that what
// is drawn depends on the pixels, not on the number of spans.
const PASS_LETTERS = { forward: "F", backward: "B", recompute: "R", update: "U" };
const FEW = 4; // ranks that have room for high rows
const HEIGHTS = { compute: [22, 34], collective: [14, 20], pipeline: [14, 16] }, MEMORY_HEIGHTS = [62, 96];

// One row of the document as arrays that can be searched.
function readRow(row) {
  const count = row.kind.length, starts = new Float64Array(count), ends = new Float64Array(count), styles = new Uint8Array(count);
  let now = 0;
  for (let at = 0; at < count; at++) {
    starts[at] = now + row.gap[at];
    ends[at] = now = starts[at] + row.length[at];
    const micro = row.micro[at];
    styles[at] = (micro < 0 ? NEUTRAL : micro % COLORS) * 4 + step.spans.kinds[row.kind[at]][2];
  }
  return { rank: row.rank, stream: row.stream, starts, ends, styles, kind: row.kind, micro: row.micro };
}

// Place of the first of ascending numbers that is above a limit.
function firstAbove(numbers, limit) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

const rows = step ? step.spans.rows.map(readRow) : [];
const curves = new Map(step ? step.memory.ranks.map((curve) => {
  let now = 0;
  return [curve.rank, { ...curve, times: curve.after.map((after) => (now += after)) }];
}) : []);
const shown = new Set(step ? step.ranks.filter((one) => one.shown).map((one) => one.rank) : []);
const few = () => Number(shown.size <= FEW);
let selected = null; // {row, at}

function laneLabel(brush, lane, chart, left, right) {
  const middle = lane.y + lane.height / 2;
  brush.textAlign = "left";
  brush.font = left.bold ? `600 12.5px ${FONT}` : `10.5px ${FONT}`;
  brush.fillStyle = left.bold ? paints.ink : paints.soft;
  brush.fillText(left.text, 2, middle);
  brush.textAlign = "right";
  brush.font = `10.5px ${FONT}`;
  brush.fillStyle = paints.soft;
  brush.fillText(right, chart.gutter - 8, middle);
}

const place = (rank) => step.ranks.find((one) => one.rank === rank).at;

function spanLanes() {
  return rows.filter((row) => shown.has(row.rank)).map((row) => ({
    rank: row.rank, row, height: HEIGHTS[row.stream][few()], draw: drawRow,
    label(brush, lane, chart) {
      const second = !lane.first && chart.lanes[chart.lanes.indexOf(lane) - 1].first, narrow = chart.gutter < 120;
      laneLabel(brush, lane, chart, lane.first ? { text: `rank ${lane.rank}`, bold: true } : { text: second && !narrow ? place(lane.rank) : "" },
        narrow ? { compute: "", collective: "coll.", pipeline: "pipe." }[row.stream] : row.stream);
    },
    point(lane, time, near) {
      const at = nearest(row, time, near);
      if (at !== null) select(row, at);
    },
  }));
}

// The span at a time, or one that is near.
function nearest(row, time, near) {
  const after = firstAbove(row.starts, time);
  const [found] = [after - 1, after].filter((at) => at >= 0 && at < row.starts.length)
    .map((at) => ({ at, far: Math.max(row.starts[at] - time, time - row.ends[at], 0) }))
    .filter((one) => one.far <= near).sort((a, b) => a.far - b.far);
  return found ? found.at : null;
}

function drawRow(brush, lane, chart) {
  const { row, y, height } = lane;
  // A run of one style, not yet drawn; a pixel's column with the time that each style has in it.
  let style = -1, left = 0, right = 0, column = -1, covered = 0;
  const shares = new Float64Array((COLORS + 1) * 4), inColumn = [];
  const labels = new Labels(brush, lane, chart);
  function flush() {
    if (style < 0) return;
    fill(brush, style, left, y, right - left, height);
    style = -1;
  }
  function add(next, from, to) {
    if (style === next && from - right < 0.6) right = to;
    else {
      flush();
      [style, left, right] = [next, from, to];
    }
  }
  function flushColumn() {
    if (!inColumn.length) return;
    let most = inColumn[0];
    for (const one of inColumn) if (shares[one] > shares[most]) most = one;
    for (const one of inColumn) shares[one] = 0;
    inColumn.length = 0;
    add(most, column, column + Math.max(0.5, Math.min(1, covered)));
  }
  for (let at = firstAbove(row.ends, view.from); at < row.starts.length && row.starts[at] < view.to; at++) {
    const from = chart.x(row.starts[at]), to = chart.x(row.ends[at]), next = row.styles[at];
    if (to - from >= 1) {
      flushColumn();
      column = -1;
      if (to - from >= 4) {
        flush();
        fill(brush, next, from, y, to - from - 0.6, height);
      } else add(next, from, to);
    } else {
      const pixel = Math.floor(from);
      if (pixel !== column) {
        flushColumn();
        [column, covered] = [pixel, 0];
      }
      if (!shares[next]) inColumn.push(next);
      shares[next] += to - from + 1e-9;
      covered += to - from;
    }
    labels.add(at, from, to);
  }
  flushColumn();
  flush();
  labels.draw();
  outline(brush, lane, chart);
}

function fill(brush, style, x, y, width, height) {
  brush.fillStyle = paints.colors[style >> 2];
  brush.fillRect(x, y, width, height);
  const pattern = paints.hatches[style & 3];
  if (!pattern) return;
  brush.fillStyle = pattern;
  brush.fillRect(x, y, width, height);
}

// Words on a row: an operator's name where it fits, else pass and micro-batch over a run of narrow operators.
class Labels {
  constructor(brush, lane, chart) {
    Object.assign(this, { brush, lane, chart, run: null, waiting: [] });
    brush.font = `600 ${lane.height > 30 ? 12 : lane.height > 16 ? 11 : 9.5}px ${FONT}`;
    brush.textAlign = "left";
  }

  add(at, from, to) {
    const { row } = this.lane, style = row.styles[at], letter = PASS_LETTERS[step.spans.passes[style & 3]], micro = row.micro[at];
    const text = micro < 0 ? letter : `${letter}${micro}`;
    if (micro < 0 && letter !== "U") return; // stands between the operators of a micro-batch, and does not part them
    const key = letter === "R" ? `B${micro}` : text; // what is recomputed is part of the backward pass
    if (!this.run || this.run.key !== key || from - this.run.to > 10) {
      this.end();
      this.run = { key, from, parts: [], named: false };
    }
    const { run } = this, last = run.parts[run.parts.length - 1];
    run.to = to;
    if (last && last.text === text) last.to = to;
    else run.parts.push({ text, style, from, to });
    if (to - from >= 40 && this.write(`${text} ${opOf(row, at)}`, style, from, to, 5)) run.named = true;
  }

  end() {
    const { run } = this;
    this.run = null;
    if (!run || run.named) return;
    const written = run.parts.filter((part) => this.write(part.text, part.style, part.from, part.to));
    if (!written.length) this.write(run.key, run.parts[0].style, run.from, run.to);
  }

  // Whether the text fits between two places; it stands in the middle, or behind a margin.
  write(text, style, from, to, margin) {
    const left = Math.max(from, this.chart.gutter), right = Math.min(to, this.chart.width), { width } = this.brush.measureText(text);
    if (right - left < width + 8) return false;
    this.waiting.push({ text, style, x: margin ? left + margin : (left + right - width) / 2 });
    return true;
  }

  draw() {
    this.end();
    const { y, height } = this.lane;
    this.brush.lineWidth = 4;
    this.brush.lineJoin = "round";
    for (const { text, style, x } of this.waiting) {
      this.brush.strokeStyle = paints.colors[style >> 2];
      this.brush.strokeText(text, x, y + height / 2 + 0.5);
      this.brush.fillStyle = paints.on;
      this.brush.fillText(text, x, y + height / 2 + 0.5);
    }
  }
}

// Frames around what is selected, and around the same message on the ranks that take part in it.
function outline(brush, lane, chart) {
  if (!selected) return;
  const { row } = lane, message = messageOf(selected.row, selected.at), start = selected.row.starts[selected.at];
  let at = row === selected.row ? selected.at : null;
  if (at === null && message && message[1].includes(row.rank) && row.stream === selected.row.stream) {
    at = nearest(row, start, 2);
    if (at !== null && Math.abs(row.starts[at] - start) > 2) at = null;
  }
  if (at === null) return;
  const from = chart.x(row.starts[at]), width = Math.max(3, chart.x(row.ends[at]) - from);
  brush.lineWidth = 2;
  brush.strokeStyle = paints.surface;
  brush.strokeRect(from - 1.5, lane.y - 0.5, width + 3, lane.height + 1);
  brush.strokeStyle = paints.ink;
  brush.setLineDash(row === selected.row ? [] : [3, 2]);
  brush.strokeRect(from - 0.5, lane.y + 0.5, width + 1, lane.height - 1);
  brush.setLineDash([]);
}

const opOf = (row, at) => step.spans.ops[step.spans.kinds[row.kind[at]][0]];

function messageOf(row, at) {
  const message = step.spans.kinds[row.kind[at]][3];
  return message < 0 ? null : step.spans.messages[message];
}

function memoryLanes() {
  const most = Math.max(1, ...[...shown].map((rank) => curves.get(rank).peak_kib));
  return [...shown].sort((a, b) => a - b).map((rank) => ({
    rank, curve: curves.get(rank), most, height: MEMORY_HEIGHTS[few()], draw: drawMemory,
    label(brush, lane, chart) {
      const { curve } = lane, text = bytesText(curve.peak_kib * 1024);
      brush.textAlign = "left";
      brush.font = `600 12.5px ${FONT}`;
      brush.fillStyle = paints.ink;
      brush.fillText(`rank ${rank}`, 2, lane.y + 10);
      brush.font = `10.5px ${FONT}`;
      brush.fillStyle = paints.soft;
      brush.fillText(chart.gutter < 120 ? text : `peak ${text}`, 2, lane.y + 27);
      if (chart.gutter >= 120) brush.fillText(`at ${secondsText(curve.peak_at * step.unit_s)}`, 2, lane.y + 41);
    },
    point: (lane, time) => tellMemory(lane.curve, time),
  }));
}

function drawMemory(brush, lane, chart) {
  const { curve, most, y, height } = lane, top = (kib) => y + height - (kib / (most * 1.12)) * height;
  brush.beginPath();
  const first = Math.max(0, firstAbove(curve.times, view.from) - 1);
  let last = y + height;
  brush.moveTo(chart.x(curve.times[first] || 0), last);
  for (let at = first; at < curve.times.length && curve.times[at] <= view.to; at++) {
    const x = chart.x(curve.times[at]);
    let high = curve.kib[at]; // the highest in a pixel's column
    while (at + 1 < curve.times.length && chart.x(curve.times[at + 1]) - x < 1) high = Math.max(high, curve.kib[++at]);
    brush.lineTo(x, last);
    brush.lineTo(x, (last = top(high)));
  }
  brush.lineTo(chart.width + 2, last);
  brush.lineTo(chart.width + 2, y + height);
  brush.closePath();
  brush.globalAlpha = 0.35;
  brush.fillStyle = paints.accent;
  brush.fill();
  brush.globalAlpha = 1;
  brush.strokeStyle = paints.accent;
  brush.lineWidth = 1;
  brush.stroke();
  if (curve.peak_at < view.from || curve.peak_at > view.to) return;
  const x = chart.x(curve.peak_at), peak = top(curve.peak_kib);
  brush.fillStyle = brush.strokeStyle = paints.ink;
  brush.setLineDash([2, 3]);
  brush.beginPath();
  brush.moveTo(x, y + height);
  brush.lineTo(x, peak);
  brush.stroke();
  brush.setLineDash([]);
  brush.beginPath();
  brush.arc(x, peak, 3.5, 0, 7);
  brush.fill();
  brush.font = `10.5px ${FONT}`;
  const text = peakWords(lane.rank), { width } = brush.measureText(text);
  const after = x + 9 + width < chart.width, start = after ? x + 9 : x - 9 - width;
  if (start < chart.gutter) return;
  brush.textAlign = "left";
  brush.fillStyle = paints.surface;
  brush.globalAlpha = 0.85;
  brush.fillRect(start - 3, peak - 4, width + 6, 15);
  brush.globalAlpha = 1;
  brush.fillStyle = paints.ink;
  brush.fillText(text, start, peak + 4);
}

const peakOf = (rank) => step.peaks.find((one) => one.rank === rank);

const tensorWords = (kind) => `${kind.bytes_text} ${kind.count > 1 ? `${kind.count} x ` : ""}${kind.op} ${kind.cell}`;

function peakWords(rank) {
  const [first] = peakOf(rank).tensors;
  return first ? `largest: ${tensorWords(first)}` : "";
}
