"use strict";
// What report pages share. Each draws itself from the JSON document in #data; its *_data.py says what is in it.
// Texts enter as text nodes only; no markup is ever made from data.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function make(tag, settings = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(settings)) {
    if (key === "class") element.className = value;
    else if (key === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (key === "color") element.style.setProperty("--c", value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

// A dotted name that breaks behind its dots only.
function dotted(name) {
  const parts = name.split(".").map((part, at, all) => make("span", { class: "unbroken" }, part + (at < all.length - 1 ? "." : "")));
  return parts.flatMap((part) => [part, make("wbr")]);
}

// Colours of `count` things: eight that are told apart well, or a walk around the wheel.
function color(index, count) {
  return count <= 8 ? `var(--c${index})` : `hsl(${Math.round(210 + (index * 330) / count) % 360} 52% 56%)`;
}

function choice(id, options, chosen, act) {
  const place = byId(id);
  const buttons = options.map((option) => make("button", {
    type: "button", role: "radio", "data-value": option.value, disabled: option.disabled ? "" : undefined, title: option.title,
    on: { click: () => select(option.value, true) },
  }, option.text));
  function select(value, tell) {
    for (const button of buttons) {
      const is = button.dataset.value === String(value);
      button.setAttribute("aria-checked", is);
      button.tabIndex = is ? 0 : -1;
    }
    if (tell) act(value);
  }
  place.replaceChildren(...buttons);
  place.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const able = buttons.filter((button) => !button.disabled);
    if (!step || !able.length) return;
    event.preventDefault();
    const next = able[(able.indexOf(document.activeElement) + step + able.length) % able.length];
    next.focus();
    next.click();
  });
  select(chosen, false);
}

// A table whose heads sort it. Columns: {head, text(row) -> text or node, key(row), number, class}.
function table(place, columns, rows, sorted, decorate) {
  const body = make("tbody");
  const heads = columns.map((column) => make("th", { scope: "col", class: `${column.number ? "number" : ""} ${column.class || ""}` },
    make("button", { type: "button", on: { click: () => sort(column) } }, column.head)));
  let state = sorted;
  function sort(column) {
    const again = state && state.column === column.head;
    state = { column: column.head, down: again ? !state.down : Boolean(column.number) };
    fill();
  }
  function fill() {
    const column = state && columns.find((one) => one.head === state.column);
    heads.forEach((head, place) => {
      if (columns[place] === column) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const key = column && (column.key || column.text);
    const order = column ? [...rows].sort((a, b) => compare(key(a), key(b)) * (state.down ? -1 : 1)) : rows;
    body.replaceChildren(...order.map((row) => {
      const line = make("tr", {}, ...columns.map((one) => make("td", { class: `${one.number ? "number" : ""} ${one.class || ""}` }, one.text(row))));
      if (decorate) decorate(line, row);
      return line;
    }));
  }
  fill();
  place.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body));
}

// A number's text with a bar beside it, as long as its share of the largest.
function measured(text, share) {
  const bar = make("i", { class: "share" });
  bar.style.width = `${Math.round(share * 90)}px`;
  return make("div", { class: "measured" }, bar, make("span", {}, text));
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function ranges(numbers) {
  const parts = [];
  for (const number of numbers) {
    const last = parts[parts.length - 1];
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  const told = parts.map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`));
  return told.length > 8 ? `${told.slice(0, 6).join(", ")} ... ${told[told.length - 1]}` : told.join(", ");
}

function drawHead() {
  byId("title").textContent = data.title;
  byId("overrides").textContent = data.overrides;
  byId("facts").append(...data.facts.map((fact) => make("div", {}, make("dt", {}, fact.label), make("dd", {}, fact.value))));
  byId("notes").append(...data.notes.map((note) => make("p", {}, note)));
}
