"use strict";
const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
const fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const minus = (text) => text.replaceAll("-", "−");
const told = (value, share = false) =>
  value === null ? "–" : minus(share ? `${(100 * value).toFixed(1)} %` : String(Number(value.toPrecision(4))));
const choice = (name, options, chosen, first = 0) => {
  const select = make("select", {}, ...options.map((text, index) => make("option", { value: index }, text)));
  select.value = first;
  select.addEventListener("change", () => chosen(Number(select.value)));
  return make("label", {}, `${name} `, select);
};

/* Tables: sorted by a click, filtered by a word. */
const keyOf = (cell) => {
  if (cell.dataset.value) return Number(cell.dataset.value);
  const number = parseFloat(cell.textContent.replace("−", "-"));
  return cell.classList.contains("number") || Number.isFinite(number) ? number : cell.textContent;
};
const compare = (a, b, order) => {
  const unknown = Number.isNaN(a) - Number.isNaN(b); // what is not known stays below, whichever way is up
  if (unknown || Number.isNaN(a)) return unknown;
  return order * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
};
const sortable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", title: "sort by this column" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => compare(keyOf(a.cells[column]), keyOf(b.cells[column]), order)));
    });
  });
};
const filterable = (table) => {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 12) return;
  const box = make("input", { type: "search", autocomplete: "off" });
  const count = make("output", {});
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.classList.toggle("out", !words.every((word) => text.includes(word)));
      shown(row);
    }
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = box.value.trim() ? `${left} of ${rows.length} rows` : "";
  });
  table.parentElement.before(make("div", { class: "controls" }, make("label", {}, "Filter rows ", box), count));
};

/* Methods: a box switches one off in all tables and panels. */
const off = new Set();
const shown = (row) => {
  row.hidden = off.has(row.dataset.method) || row.classList.contains("out");
};
const redrawn = [];
const switches = (fieldset) => {
  const methods = [...new Set([...document.querySelectorAll("tr[data-method]")].map((row) => row.dataset.method))];
  fieldset.hidden = methods.length < 2;
  for (const method of methods) {
    const box = make("input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => {
      off[box.checked ? "delete" : "add"](method);
      document.querySelectorAll("tr[data-method]").forEach(shown);
      redrawn.forEach((again) => again());
    });
    fieldset.append(make("label", {}, box, ` ${method}`));
  }
};

/* Scales. */
const ticksOf = (low, high, most) => {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = power * [1, 2, 5, 10].find((each) => each * power * most >= (high - low) * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
};
const scaleOf = (values, { most = 6, log = false, pad = 0.04 } = {}) => {
  if (!values.length) values = [0, 1];
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (log) {
    const [from, to] = [Math.log(low) - pad, Math.log(high) + pad];
    const decades = Array.from({ length: 40 }, (_, k) => [1, 2, 5].map((each) => each * 10 ** (k - 20))).flat();
    const inside = decades.filter((tick) => Math.log(tick) >= from && Math.log(tick) <= to);
    const place = (value) => (Math.log(value) - from) / (to - from);
    return { place, ticks: inside.length > most ? inside.filter((_, k) => k % Math.ceil(inside.length / most) === 0) : inside };
  }
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const room = pad * (high - low);
  [low, high] = [low - room, high + room];
  return { place: (value) => (value - low) / (high - low), ticks: ticksOf(low, high, most) };
};
const known = (values) => values.filter((value) => value !== null && value !== undefined);
const percent = (place) => `${100 * Math.min(Math.max(place, 0), 1)}%`;
const track = (place, { span, draws = [], dot = null, truth = null, floor, colour, hollow = false }) => {
  const line = make("div", { class: "track" });
  if (colour) line.style.setProperty("--colour", colour);
  const put = (kind, at, to) => {
    const mark = make("i", { class: kind });
    mark.style.left = percent(place(at));
    if (to !== undefined) mark.style.width = `calc(${percent(place(to))} - ${percent(place(at))})`;
    line.append(mark);
  };
  if (floor) put("floor", ...floor);
  if (span && known(span).length === 2) put("span", ...span);
  known(draws).forEach((value) => put("draw", value));
  if (truth !== null) put("truth", truth);
  if (dot !== null) put(hollow ? "dot hollow" : "dot", dot);
  return line;
};
const scaleLine = ({ place, ticks }, share) => {
  const line = make("div", { class: "scale", "aria-hidden": "true" });
  for (const tick of ticks) {
    const mark = make("span", {}, share ? minus(`${Number((100 * tick).toPrecision(6))} %`) : told(tick));
    mark.style.left = percent(place(tick));
    line.append(mark);
  }
  return line;
};

/* Panels of methods, each ranked by one metric. */
const panelOf = (panel) => {
  const sign = panel.better === "low" ? 1 : -1;
  const rows = Object.entries(panel.values).filter(([name]) => !off.has(name));
  rows.sort(([, [a]], [, [b]]) => (a === null) - (b === null) || sign * (a - b));
  const floor = panel.floors.length ? [Math.min(...panel.floors), Math.max(...panel.floors)] : null;
  const ends = known([...rows.flatMap(([, three]) => three), ...(floor ?? [])]);
  const values = known([...rows.map(([, [value]]) => value), ...(floor ?? [])]);
  const section = make("div", {}, make("h3", {}, panel.title));
  if (!values.length) return section;
  const log = Math.min(...ends) > 0 && Math.max(...values) > 4 * Math.min(...values) && !panel.share;
  const scale = scaleOf(ends, { most: 4, log });
  const list = rows.map(([name, [value, low, high]]) => {
    const best = !panel.best.length || panel.best.includes(name);
    const line = track(scale.place, { span: [low, high], dot: value, floor, colour: panel.colours[name], hollow: !best });
    const form = (number) => panel.share || number === null ? told(number, panel.share) : minus(number.toFixed(Math.abs(number) < 10 ? 3 : 1));
    if (low !== null && high !== null) line.title = `95 % interval ${form(low)} to ${form(high)}`;
    return make("li", { class: best && panel.best.length ? "bar best" : "bar" }, make("span", {}, name), line, make("span", {}, form(value)));
  });
  const below = make("div", { class: "bar", "aria-hidden": "true" }, make("span"), scaleLine(scale, panel.share), make("span"));
  section.append(make("p", { class: "caption" }, `${panel.measure}, ${panel.better}er is better${log ? ", log axis" : ""}`), make("ol", {}, ...list), below);
  return section;
};
const panels = (home, data) => {
  const grid = make("div", { class: "panels", "aria-live": "polite" });
  let metric = 0;
  const update = () => {
    const some = metric ? [data.panels[metric - 1]] : data.panels.filter((panel) => panel.first);
    grid.replaceChildren(...some.map(panelOf));
  };
  const names = data.panels.map((panel) => `${panel.title}: ${panel.measure}`);
  const select = choice("Metric", ["the main ones", ...names], (index) => { metric = index; update(); });
  home.append(make("div", { class: "controls" }, select), grid);
  redrawn.push(update);
  update();
};

/* Rows: a scatter in which each point opens its row, and what the drawn functions say of it. */
const PAD = { left: 58, right: 14, top: 10, bottom: 46 };
const cross = (x, y, r) => `M${x - r},${y - r}l${2 * r},${2 * r}m${-2 * r},0l${2 * r},${-2 * r}`;
const drawable = ([x, y]) => Number.isFinite(x) && Number.isFinite(y);
const dotted = (points, r) => points.filter(drawable).map(([x, y]) => (r ? cross(x, y, r) : `M${x},${y}h0`)).join("");
const facts = (pairs, kind = "") => make("dl", { class: kind }, ...pairs.map(([name, value]) => {
  const both = [make("dt", {}, name), make("dd", {}, value)];
  return kind ? [make("div", {}, ...both)] : both;
}).flat());
const pictureOf = (sprite, index, label) => {
  const canvas = make("canvas", { width: sprite.width, height: sprite.height, role: "img", "aria-label": label });
  const [column, row] = [index % sprite.columns, Math.floor(index / sprite.columns)];
  const put = () => canvas.getContext("2d").drawImage(sprite.image, -column * sprite.width, -row * sprite.height);
  if (sprite.image.complete) put();
  else sprite.image.addEventListener("load", put, { once: true });
  return canvas;
};
const functionsOf = (data, method, index) => {
  if (data.classes) {
    const kept = method.kept[index];
    return [
      make("h4", {}, method.draws ? `Probabilities by ${method.draws[index][0].length} drawn functions, and their average` : "Probabilities"),
      ...kept.map((k, place) => make("div", { class: "bar" },
        make("span", {}, `${data.classes[k]}${k === data.truth[index] ? " (true)" : ""}`),
        track((value) => value, {
          dot: method.means[index][place], draws: method.draws ? method.draws[index][place].map((value) => value / 100) : [],
          colour: k === data.truth[index] ? "var(--right)" : "var(--quiet)",
        }),
        make("span", {}, told(method.means[index][place], true)))),
      make("div", { class: "bar" }, make("span"), scaleLine({ place: (value) => value, ticks: [0, 0.5, 1] }, true), make("span")),
    ];
  }
  const [mean, low, high] = ["predicted", "low", "high"].map((name) => method.measures[name][index]);
  const truth = method.measures.observed[index], draws = method.draws ? method.draws[index] : [];
  const scale = scaleOf(known([mean, low, high, truth, ...draws]), { most: 5 });
  return [
    make("h4", {}, draws.length ? `Means of ${draws.length} drawn functions, 95 % interval of the target, and what was observed (upright bar)` : "Mean, 95 % interval, and what was observed (upright bar)"),
    track(scale.place, { span: [low, high], dot: mean, draws, truth }), scaleLine(scale),
  ];
};
const rowCard = (data, method, index) => {
  const title = `${data.row} ${data.rows[index]}`, content = data.content;
  const parts = [make("h3", {}, title)];
  if (content.sprite) parts.push(pictureOf(content.sprite, index, title));
  const named = data.classes
    ? [["true class", data.classes[data.truth[index]]], ["predicted class", `${data.classes[method.guess[index]]}${method.marked[index] ? " ✗" : ""}`]] : [];
  parts.push(facts([...named, ...Object.entries(data.measures).map(([name, { label, share }]) => [label, told(method.measures[name][index], share)])]));
  parts.push(...functionsOf(data, method, index));
  if (content.texts) parts.push(make("blockquote", {}, content.texts[index]));
  if (content.cells) parts.push(make("h4", {}, content.title), facts(content.cells[index].map((cell, k) => [content.names[k], cell]), "cells"));
  return parts;
};
const explorer = (home, data) => {
  const first = Math.max(data.methods.findIndex((each) => each.draws || each.measures.disagreement?.some((value) => value > 0)), 0);
  let [method, view, at, pinned, places] = [data.methods[first], data.views[0], data.open, false, []];
  if (data.content.sprite) data.content.sprite.image = Object.assign(new Image(), { src: data.content.sprite.source });
  const svg = draw("svg", { tabindex: 0, role: "application", "aria-roledescription": "scatter of rows" });
  const plot = make("div", { class: "plot" }, svg);
  const card = make("div", { class: "card", "aria-live": "polite" });
  const ring = draw("circle", { class: "ring", r: 7 });
  const open = (index) => {
    at = index;
    card.replaceChildren(...rowCard(data, method, at));
    if (drawable(places[at])) fill(ring, { cx: places[at][0], cy: places[at][1] }, []);
  };
  const update = () => {
    const [width, height] = [plot.clientWidth || 600, Math.round(Math.min(Math.max(0.75 * (plot.clientWidth || 600), 280), 440))];
    const { x, y } = view, { measures, cloud, marked } = method;
    const all = (name) => known(data.methods.flatMap((each) => [...each.measures[name], ...(each.cloud?.[name] ?? [])])); // one scale for all methods
    const span = view.span && { low: measures.low, high: measures.high };
    const room = (values) => 2 * (Math.max(...values) - Math.min(...values)) || Infinity; // one wild interval would hide the others
    const limits = [Math.min(...all(x)) - room(all(x)), Math.max(...all(x)) + room(all(x))];
    const ends = span ? [...all("low"), ...all("high")].map((value) => Math.min(Math.max(value, limits[0]), limits[1])) : [];
    const across = scaleOf(all(x), { most: Math.max(3, Math.round(width / 90)) });
    const up = scaleOf([...all(y), ...ends, ...(view.level ? all(x) : [])]);
    const [left, wide, tall] = [PAD.left, width - PAD.left - PAD.right, height - PAD.top - PAD.bottom];
    const px = (value) => (value === null ? NaN : Math.round(10 * (left + wide * across.place(value))) / 10);
    const py = (value) => (value === null ? NaN : Math.round(10 * (PAD.top + tall * (1 - Math.min(Math.max(up.place(value), 0), 1)))) / 10);
    places = data.rows.map((_, index) => [px(measures[x][index]), py(measures[y][index])]);
    const spots = cloud ? cloud[x].map((value, index) => [px(value), py(cloud[y][index])]) : [];
    const parts = [];
    const percentage = (name) => data.measures[name].share;
    for (const tick of across.ticks) {
      parts.push(draw("path", { class: "axis", d: `M${px(tick)},${PAD.top}v${tall}` }));
      parts.push(draw("text", { x: px(tick), y: height - 28, "text-anchor": "middle" }, percentage(x) ? `${Math.round(100 * tick)} %` : told(tick)));
    }
    for (const tick of up.ticks) {
      parts.push(draw("path", { class: "axis", d: `M${left},${py(tick)}h${wide}` }));
      parts.push(draw("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, percentage(y) ? `${Math.round(100 * tick)} %` : told(tick)));
    }
    parts.push(draw("text", { class: "name", x: left + wide / 2, y: height - 8, "text-anchor": "middle" }, data.measures[x].label));
    parts.push(draw("text", { class: "name", transform: `translate(12,${PAD.top + tall / 2}) rotate(-90)`, "text-anchor": "middle" }, data.measures[y].label));
    if (view.level) {
      const line = [Math.min(...all(x)), Math.max(...all(x))];
      parts.push(draw("path", { class: "axis level", d: `M${px(line[0])},${py(line[0])}L${px(line[1])},${py(line[1])}` }));
    }
    for (const wrong of [0, 1]) {
      const kind = wrong ? " wrong" : "", mine = places.map((_, index) => index).filter((index) => marked[index] === wrong);
      parts.push(draw("path", { class: `dots faint${kind}`, d: dotted(spots.filter((_, index) => cloud.marked[index] === wrong), wrong * 2) }));
      if (span) parts.push(draw("path", { class: `spans${kind}`, d: mine.filter((index) => drawable([py(span.low[index]), py(span.high[index])])).map((index) => `M${places[index][0]},${py(span.low[index])}V${py(span.high[index])}`).join("") }));
      parts.push(draw("path", { class: `dots${kind}`, d: dotted(mine.map((index) => places[index]), wrong * 3) }));
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", `${data.measures[y].label} against ${data.measures[x].label}, ${data.rows.length} rows. Arrow keys go from row to row.`);
    svg.replaceChildren(...parts, ring);
    open(at);
  };
  const nearest = (event, reach) => {
    const box = svg.getBoundingClientRect();
    const away = places.map((place) => (drawable(place) ? Math.hypot(place[0] - event.clientX + box.left, place[1] - event.clientY + box.top) : Infinity));
    const index = away.indexOf(Math.min(...away));
    return away[index] <= reach ? index : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const index = pinned || event.pointerType === "touch" ? null : nearest(event, 24);
    if (index !== null && index !== at) open(index);
  });
  svg.addEventListener("click", (event) => {
    const index = nearest(event, 32);
    pinned = index !== null && !(pinned && index === at);
    if (index !== null) open(index);
    ring.style.strokeWidth = pinned ? "3px" : "";
  });
  svg.addEventListener("keydown", (event) => {
    const order = places.map((_, index) => index).filter((index) => drawable(places[index])).sort((a, b) => places[a][0] - places[b][0] || places[b][1] - places[a][1]);
    const here = order.indexOf(at), last = order.length - 1;
    const to = { ArrowRight: here + 1, ArrowUp: here + 1, ArrowLeft: here - 1, ArrowDown: here - 1, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open(order[Math.min(Math.max(to, 0), last)]);
  });
  const controls = make("div", { class: "controls" });
  if (data.methods.length > 1) controls.append(choice("Method", data.methods.map(({ name }) => name), (index) => { method = data.methods[index]; update(); }, first));
  if (data.views.length > 1) controls.append(choice("Axes", data.views.map(({ x, y }) => `${data.measures[y].label} against ${data.measures[x].label}`), (index) => { view = data.views[index]; update(); }));
  const legend = make("p", { class: "legend" }, make("span", { class: "sign" }, "● "), `${data.signs[0]}  `, make("span", { class: "sign wrong" }, "✗ "), `${data.signs[1]}. ${data.note} Point at a row, tap it or use the arrow keys to open it; a click keeps it open.`);
  home.append(controls, legend, make("div", { class: "explorer" }, plot, card));
  update();
  new ResizeObserver(() => { if (plot.clientWidth && Math.round(svg.viewBox.baseVal.width) !== plot.clientWidth) update(); }).observe(plot);
};

document.querySelectorAll("table").forEach((table) => { sortable(table); filterable(table); });
document.querySelectorAll("#methods").forEach(switches);
for (const home of document.querySelectorAll(".live")) {
  const data = JSON.parse(home.firstElementChild.textContent);
  home.hidden = false;
  (data.kind === "rows" ? explorer : panels)(home, data);
}
