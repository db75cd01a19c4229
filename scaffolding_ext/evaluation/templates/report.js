"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const purposeColors = JSON.parse(document.getElementById("colors").textContent);
const byId = (id) => document.getElementById(id);
const escaped = (value) => String(value ?? "–").replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

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

function showSample(number) {
  const sample = data.samples[number];
  const details = JSON.parse(byId(`s${number}`).textContent);
  const sections = details.runs.map((run, r) => {
    const cell = sample.cells[r];
    const tokens = Object.entries(run.tokens).map(([purpose, counts]) =>
      `<span><i class="dot" style="background:${purposeColors[purpose] ?? "#888"}"></i>${escaped(purpose)} ${counts.decoded} decoded, ${counts.prefilled} prefilled, ${counts.reused} reused</span>`).join("");
    const said = run.error ?? run.output ?? "";
    return `<section><h2>${escaped(data.runs[r].name)}</h2>`
      + `<p class="facts"><b class="${cell.right ? "right" : "wrong"}">${cell.right ? "✓" : "✗"} ${escaped(cell.answer)}</b>`
      + `<span>${escaped(cell.reason)}</span><span>${cell.decoded} decoded</span><span>${cell.seconds.toFixed(3)} s</span></p>`
      + `<p class="legend">${tokens}</p><pre>${escaped(said)}</pre></section>`;
  });
  const links = [
    '<a href="#">all samples</a>',
    number > 0 ? `<a href="#s${number - 1}">← before</a>` : "",
    number + 1 < data.samples.length ? `<a href="#s${number + 1}">next →</a>` : "",
  ].join("");
  const asked = details.prompt === null ? "" : `<pre>${escaped(details.prompt)}</pre>`;
  byId("sample").innerHTML = `<p class="nav">${links}</p><h1>${escaped(columns[0].of(sample))}</h1>${asked}`
    + `<p>right answer: <b>${escaped(sample.target)}</b></p><div class="runs">${sections.join("")}</div>`;
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
drawHead();
drawRows();
route();
