"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const purposeColors = JSON.parse(document.getElementById("colors").textContent);
const byId = (id) => document.getElementById(id);
const escaped = (value) => String(value ?? "–").replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const shown = (value) =>
  typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4)
  : typeof value === "object" && value !== null ? JSON.stringify(value) : value;

// The table of samples

const columns = [
  { name: "question", of: (s) => (s.epoch ? `${s.id}/${s.epoch}` : s.id) },
  { name: "target", of: (s) => s.target },
];
data.runs.forEach((run, r) => columns.push(
  { name: "answer", of: (s) => s.cells[r].answer ?? "", run: r },
  { name: "decoded", of: (s) => s.cells[r].decoded },
  { name: "seconds", of: (s) => s.cells[r].seconds },
  { name: "exit", of: (s) => s.cells[r].reason },
));
const natural = new Intl.Collator("en", { numeric: true });
const order = { column: 0, descending: false };

function drawHead() {
  const groups = data.runs.map((run) => `<th colspan="4" class="first">${escaped(run.name)}</th>`).join("");
  const heads = columns.map((column, c) => {
    const arrow = order.column === c ? (order.descending ? " ↓" : " ↑") : "";
    const sorted = order.column === c ? (order.descending ? "descending" : "ascending") : "none";
    return `<th data-c="${c}" aria-sort="${sorted}" class="${column.run === undefined ? "" : "first"}">${column.name}${arrow}</th>`;
  });
  document.querySelector("#samples thead").innerHTML = `<tr><th colspan="2"></th>${groups}</tr><tr>${heads.join("")}</tr>`;
}

function drawRows() {
  const wanted = byId("search").value.toLowerCase();
  const which = byId("which").value;
  const reason = byId("reason").value;
  const kept = data.samples.map((sample, number) => ({ sample, number })).filter(({ sample }) => {
    const text = [sample.id, sample.target, ...sample.cells.map((cell) => cell.answer ?? "")].join("\n").toLowerCase();
    const run = Number(which.slice(5));
    return text.includes(wanted)
      && (which !== "disagree" || new Set(sample.cells.map((cell) => cell.right)).size > 1)
      && (!which.startsWith("right") || sample.cells[run].right)
      && (!which.startsWith("wrong") || !sample.cells[run].right)
      && (!reason || sample.cells.some((cell) => cell.reason === reason));
  });
  const of = columns[order.column].of;
  const sign = order.descending ? -1 : 1;
  kept.sort((a, b) => {
    const [x, y] = [of(a.sample), of(b.sample)];
    return sign * (typeof x === "number" ? x - y : natural.compare(x, y));
  });
  document.querySelector("#samples tbody").innerHTML = kept.map(({ sample, number }) => {
    const cells = sample.cells.map((cell) => {
      const mark = cell.right ? '<span class="right">✓</span>' : '<span class="wrong">✗</span>';
      return `<td class="first text">${mark} ${escaped(cell.answer)}</td><td>${cell.decoded}</td>`
        + `<td>${cell.seconds.toFixed(2)}</td><td class="text">${escaped(cell.reason)}</td>`;
    });
    const name = escaped(columns[0].of(sample));
    return `<tr data-s="${number}"><td><a href="#s${number}">${name}</a></td><td class="text">${escaped(sample.target)}</td>${cells.join("")}</tr>`;
  }).join("");
  byId("count").textContent = `${kept.length} of ${data.samples.length}`;
}

document.querySelector("#samples thead").addEventListener("click", (event) => {
  const head = event.target.closest("[data-c]");
  if (!head) return;
  const column = Number(head.dataset.c);
  order.descending = order.column === column && !order.descending;
  order.column = column;
  drawHead();
  drawRows();
});
document.querySelector("#samples tbody").addEventListener("click", (event) => {
  const row = event.target.closest("[data-s]");
  if (row) location.hash = `s${row.dataset.s}`;
});
byId("filters").addEventListener("input", drawRows);
byId("filters").addEventListener("submit", (event) => event.preventDefault());

// The page of a sample

const looks = {
  probe: ["#e8a33d", "circle"], stop: ["#b3261e", "square"], unsure: ["#b3261e", "square"],
  force: ["#8a6d00", "square"], end: ["#555", "square"], take_over: ["#d55e00", "triangle"],
  accept: ["#009e73", "circle"], vote: ["#5c4b9b", "diamond"], allocate: ["#9a7bb5", "diamond"],
  best_of_n: ["#5c4b9b", "diamond"], done: ["#0072b2", "diamond"], failed: ["#b3261e", "triangle"],
};
const lookOf = (name) => looks[name] ?? ["#888", "tick"];
const classColors = ["#e8a33d", "#4878a8", "#6aa56e", "#c95d4f", "#9a7bb5", "#8a6d00", "#56b4e9"];

const hasClass = (step) => step.event === "probe" && step.figures.answer_class >= 0;

// Equal answers of probes have one colour. Classes are numbered lane by lane, so a class goes by its first answer.
function nameAnswers(steps) {
  const first = new Map();
  const numbers = new Map();
  for (const step of steps.filter(hasClass)) {
    const place = `${step.lane} ${step.figures.answer_class}`;
    if (!first.has(place)) first.set(place, String(step.figures.answer));
    step.means = first.get(place);
    if (!numbers.has(step.means)) numbers.set(step.means, numbers.size);
    step.color = classColors[numbers.get(step.means) % classColors.length];
  }
}

function markOf(step, x, y, current) {
  const [ownColor, shape] = lookOf(step.event);
  const color = step.color ?? ownColor;
  const r = current ? 7 : 5;
  const line = `fill="${color}" stroke="${current ? "#000" : "#fff"}" stroke-width="${current ? 2 : 1}"`;
  if (shape === "circle") return `<circle cx="${x}" cy="${y}" r="${r}" ${line}/>`;
  if (shape === "square") return `<rect x="${x - r}" y="${y - r}" width="${2 * r}" height="${2 * r}" ${line}/>`;
  if (shape === "triangle") return `<path d="M${x} ${y - r}L${x + r} ${y + r}L${x - r} ${y + r}z" ${line}/>`;
  if (shape === "diamond") return `<path d="M${x} ${y - r - 1}L${x + r + 1} ${y}L${x} ${y + r + 1}L${x - r - 1} ${y}z" ${line}/>`;
  return `<rect x="${x - 1}" y="${y - r}" width="${current ? 4 : 2}" height="${2 * r}" ${line}/>`;
}

function drawTimeline(box, run, current) {
  const longest = Math.max(...run.lanes.map((lane) => lane.length));
  const [left, laneHeight, top] = [Math.max(40, 8 * longest + 8), 30, 4];
  const width = Math.max(280, box.clientWidth);
  const end = Math.max(...run.steps.map((step) => step.end), 1e-9);
  const x = (seconds) => left + (seconds / end) * (width - left - 14);
  const yOf = new Map(run.lanes.map((lane, l) => [lane, top + l * laneHeight + 20]));
  const height = top + run.lanes.length * laneHeight + 26;
  const parts = run.lanes.map((lane) =>
    `<text x="2" y="${yOf.get(lane) + 4}">${escaped(lane)}</text>`
    + `<path d="M${left} ${yOf.get(lane)}H${width - 14}" stroke="#e4e4e4"/>`);
  const labelled = new Map();
  const marks = [];
  run.steps.forEach((step, s) => {
    const y = yOf.get(step.lane);
    const reached = s <= current;
    const color = step.event === "take_over" ? "#d55e00" : step.event === "accept" ? "#009e73" : "#4878a8";
    if (step.lane !== "main" || run.lanes.length === 1) {
      const length = Math.max(0.5, x(step.end) - x(step.start));
      parts.push(`<rect x="${x(step.start)}" y="${y - 3}" width="${length}" height="6" fill="${color}" opacity="${reached ? 0.55 : 0.15}"/>`);
    }
    let label = "";
    if (step.event === "probe" || step.event === "stop" || step.event === "force") {
      const sure = step.figures.entropy ?? step.figures.confidence;
      const text = String(step.figures.answer ?? sure?.toPrecision(2) ?? "–").slice(0, 12);
      const half = text.length * 3.4 + 2;
      const center = Math.min(Math.max(x(step.end), left + half), width - half);
      if (center - half > (labelled.get(step.lane) ?? left - 1)) {
        labelled.set(step.lane, center + half);
        label = `<text x="${center}" y="${y - 9}" text-anchor="middle">${escaped(text)}</text>`;
      }
    }
    const opacity = reached ? 1 : 0.3;
    const mark = `<g class="mark" data-step="${s}" opacity="${opacity}"><title>${escaped(step.event)}</title>${markOf(step, x(step.end), y, s === current)}${label}</g>`;
    if (s !== current) marks.push(mark);
    else marks.current = mark;
  });
  const bottom = height - 4;
  parts.push(`<text x="${left}" y="${bottom}">0 s</text><text x="${width - 14}" y="${bottom}" text-anchor="end">${end.toPrecision(3)} s</text>`);
  box.innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${parts.join("")}${marks.join("")}${marks.current ?? ""}</svg>`;
}

// Searches: nodes by depth, larger by visits, darker by value; dashed ones were cut, the winning path is outlined.
const TREE_LEGEND = ["larger: more nodes below", "darker: worth more", "dashed: cut", "black outline: ended", "green: path of the answer"];

function drawTrees(box, run, current) {
  box.innerHTML = run.trees.map((tree) => {
    const numLeaves = new Set(tree.nodes.map((node) => node.x)).size;
    const [width, level, top] = [Math.max(280, box.clientWidth, 28 + 9 * numLeaves), 34, 18];
    const most = Math.max(2.5, Math.min(11, (width - 28) / numLeaves / 2 - 0.5));
    const radius = (node) => Math.min(node.state === "won" || node.visits > 1 ? 11 : most, 3 + 1.6 * Math.sqrt(node.visits));
    const depth = Math.max(...tree.nodes.map((node) => node.depth));
    const values = tree.nodes.map((node) => node.value).filter((value) => value !== null);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const shade = (node) => node.value === null ? "#fff" : `hsl(210 60% ${85 - 55 * (high > low ? (node.value - low) / (high - low) : 0.5)}%)`;
    const x = (node) => 14 + node.x * (width - 28);
    const y = (node) => top + node.depth * level;
    const written = tree.nodes.filter((node) => node.step <= current);
    const edges = written.map((node) => {
      const parent = tree.nodes[node.parent];
      const won = node.state === "won";
      const from = parent ? `${x(parent)} ${y(parent)}` : `${width / 2} ${top}`;
      return `<path d="M${from}L${x(node)} ${y(node)}" fill="none" stroke="${won ? "#1a7f37" : "#ccc"}" stroke-width="${won ? 2.5 : 1}"/>`;
    });
    const circles = written.map((node) => {
      const told = `${node.path.join(".")}: ${node.state}, value ${shown(node.value)}, visits ${node.visits}, answer ${node.answer ?? "–"}`;
      const outline = node.state === "won" ? '#1a7f37" stroke-width="2.5' : node.state === "ended" ? '#000" stroke-width="2' : "#888";
      return `<g class="mark" data-step="${node.step}"><title>${escaped(told)}</title><circle cx="${x(node)}" cy="${y(node)}" r="${radius(node)}" fill="${shade(node)}"`
        + ` stroke="${outline}"${node.state === "cut" ? ' stroke-dasharray="2 2"' : ""}/></g>`;
    });
    const height = top + depth * level + 16;
    return `<p class="facts"><b>tree</b><span>${escaped(tree.lane)}</span><span>${tree.nodes.length} nodes</span></p>`
      + `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${edges.join("")}<circle cx="${width / 2}" cy="${top}" r="4" fill="#444"/>${circles.join("")}</svg>`
      + `<p class="legend">${TREE_LEGEND.map((text) => `<span>${text}</span>`).join("")}</p>`;
  }).join("");
}

function describe(step) {
  const lists = Object.entries(step.figures).filter(([, value]) => Array.isArray(value) && value.length);
  const length = lists.length ? lists[0][1].length : 0;
  const together = lists.length > 1 ? lists.filter(([, value]) => value.length === length) : [];
  const facts = Object.entries(step.figures).filter((entry) => !together.some(([name]) => name === entry[0]))
    .map(([name, value]) => `<span>${escaped(name)} <b>${escaped(shown(value))}</b></span>`).join("");
  const table = together.length
    ? `<div class="scroll"><table><thead><tr><th>#</th>${together.map(([name]) => `<th>${escaped(name)}</th>`).join("")}</tr></thead><tbody>`
      + Array.from({ length }, (_, i) => `<tr><td>${i}</td>${together.map(([, value]) => `<td>${escaped(shown(value[i]))}</td>`).join("")}</tr>`).join("")
      + "</tbody></table></div>"
    : "";
  const spent = `${step.start.toFixed(3)} → ${step.end.toFixed(3)} s`;
  return `<p class="facts"><b>${escaped(step.event)}</b><span>${escaped(step.lane)}</span><span>${spent}</span></p><p class="facts">${facts}</p>${table}`;
}

// Each mark once, with its name; of probes one for each answer.
function legendOf(steps) {
  const shown = new Map();
  for (const step of steps) {
    const name = step.means === undefined ? step.event : `${step.event}: ${step.means.slice(0, 24)}`;
    if (!shown.has(name)) shown.set(name, `<span><svg viewBox="0 0 14 14">${markOf(step, 7, 7, false)}</svg>${escaped(name)}</span>`);
  }
  return [...shown.values()].join("");
}

function showRun(section, run) {
  run.steps = run.steps.map(([lane, start, end, event, figures]) => ({ lane, start, end, event, figures }));
  nameAnswers(run.steps);
  section.querySelector(".looks").innerHTML = legendOf(run.steps);
  const box = section.querySelector(".timeline");
  const slider = section.querySelector("input");
  let current = run.steps.length - 1;
  slider.max = current;
  const go = (number) => {
    current = Math.min(Math.max(number, 0), run.steps.length - 1);
    slider.value = current;
    section.querySelector("output").textContent = `${current + 1} of ${run.steps.length}`;
    section.querySelector(".step").innerHTML = describe(run.steps[current]);
    drawTimeline(box, run, current);
    drawTrees(section.querySelector(".trees"), run, current);
  };
  slider.addEventListener("input", () => go(Number(slider.value)));
  section.querySelector(".steps").addEventListener("click", (event) => {
    const by = event.target.dataset?.by;
    if (by) go(by === "first" ? 0 : by === "last" ? run.steps.length : current + Number(by));
  });
  for (const place of [box, section.querySelector(".trees")]) {
    place.addEventListener("click", (event) => {
      const mark = event.target.closest("[data-step]");
      if (mark) go(Number(mark.dataset.step));
    });
  }
  section.addEventListener("keydown", (event) => {
    if (event.target === slider) return;
    if (event.key === "ArrowLeft") go(current - 1);
    else if (event.key === "ArrowRight") go(current + 1);
    else return;
    event.preventDefault();
  });
  section.redraw = () => go(current);
  go(current);
}

function showSample(number) {
  const sample = data.samples[number];
  const details = JSON.parse(byId(`s${number}`).textContent);
  const steps = [["first", "«"], ["-1", "‹"], ["1", "›"], ["last", "»"]]
    .map(([by, sign]) => `<button type="button" data-by="${by}" aria-label="step ${by}">${sign}</button>`).join("");
  const sections = details.runs.map((run, r) => {
    const cell = sample.cells[r];
    const tokens = Object.entries(run.tokens).map(([purpose, counts]) =>
      `<span><i class="dot" style="background:${purposeColors[purpose] ?? "#888"}"></i>${escaped(purpose)} ${counts.decoded} decoded, ${counts.prefilled} prefilled, ${counts.reused} reused</span>`).join("");
    const said = run.error ?? run.output ?? "";
    return `<section tabindex="0"><h2>${escaped(data.runs[r].name)}</h2>`
      + `<p class="facts"><b class="${cell.right ? "right" : "wrong"}">${cell.right ? "✓" : "✗"} ${escaped(cell.answer)}</b>`
      + `<span>${escaped(cell.reason)}</span><span>${cell.decoded} decoded</span><span>${cell.seconds.toFixed(3)} s</span></p>`
      + `<p class="legend">${tokens}</p><div class="timeline"></div><p class="legend looks"></p><div class="trees timeline"></div>`
      + `<div class="steps">${steps}<input type="range" min="0" aria-label="step"><output></output></div>`
      + `<div class="step"></div><pre>${escaped(said)}</pre></section>`;
  });
  const links = [
    '<a href="#">all samples</a>',
    number > 0 ? `<a href="#s${number - 1}">← before</a>` : "",
    number + 1 < data.samples.length ? `<a href="#s${number + 1}">next →</a>` : "",
  ].join("");
  const asked = details.prompt === null ? "" : `<pre>${escaped(details.prompt)}</pre>`;
  byId("sample").innerHTML = `<p class="nav">${links}</p><h1>${escaped(columns[0].of(sample))}</h1>${asked}`
    + `<p>right answer: <b>${escaped(sample.target)}</b></p><div class="runs">${sections.join("")}</div>`;
  [...byId("sample").querySelectorAll("section")].forEach((section, r) => showRun(section, details.runs[r]));
}

function route() {
  const match = /^#s(\d+)$/.exec(location.hash);
  const isSample = match !== null && Number(match[1]) < data.samples.length;
  byId("overview").hidden = isSample;
  byId("sample").hidden = !isSample;
  if (isSample) {
    showSample(Number(match[1]));
    window.scrollTo(0, 0);
  }
}

window.addEventListener("hashchange", route);
window.addEventListener("resize", () => byId("sample").querySelectorAll("section").forEach((section) => section.redraw?.()));
drawHead();
drawRows();
route();
