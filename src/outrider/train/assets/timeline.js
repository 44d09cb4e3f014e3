"use strict";
// Draws the slots of a run: one row a slot, one bar a phase. Reads everything from the JSON in the page.
const data = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("chart");
const tip = document.getElementById("tip");
const colours = getComputedStyle(document.documentElement);
const colour = (name) => colours.getPropertyValue(`--${name}`).trim();

const LEFT = 150, TOP = 40, TRAINER = 12, AXIS = 22;
const row = Math.max(4, Math.min(18, Math.floor(900 / Math.max(data.rows.length, 1))));
const firstRow = TOP + TRAINER + 6;
const height = firstRow + row * data.rows.length + AXIS;
let view = [0, Math.max(data.span, 1)];
let drag = null;

const bars = data.attempts.map((attempt) => {
  let at = attempt[1];
  return attempt[7].map((value, index, list) => index % 2 ? null : [value, at, at += list[index + 1]]).filter(Boolean);
});
const inRow = data.rows.map(() => []);
data.attempts.forEach((attempt, index) => inRow[attempt[0]].push(index));

const width = () => canvas.clientWidth;
const x = (ms) => LEFT + (ms - view[0]) / (view[1] - view[0]) * (width() - LEFT - 8);
const time = (px) => view[0] + (px - LEFT) / (width() - LEFT - 8) * (view[1] - view[0]);
const seconds = (ms) => ms < 1000 ? `${Math.round(ms)} ms` : ms < 120000 ? `${+(ms / 1000).toFixed(2)} s`
  : `${Math.floor(ms / 60000)} min ${Math.round(ms % 60000 / 1000)} s`;

function draw() {
  const ratio = Math.min(window.devicePixelRatio || 1, 32000 / height);
  canvas.width = width() * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  drawRows(pen);
  pen.save();
  pen.beginPath();
  pen.rect(LEFT, 0, width() - LEFT, height);
  pen.clip();
  drawAxis(pen);
  drawBars(pen);
  drawMarks(pen);
  pen.restore();
  if (drag) {
    pen.fillStyle = "#8888";
    pen.fillRect(Math.min(drag[0], drag[1]), TOP, Math.abs(drag[1] - drag[0]), height - TOP - AXIS);
  }
}

function drawRows(pen) {
  let before = null;
  data.rows.forEach((worker, index) => {
    const y = firstRow + index * row;
    if (worker === before) return;
    before = worker;
    const n = data.rows.filter((other) => other === worker).length;
    pen.strokeStyle = colour("line");
    pen.beginPath(); pen.moveTo(0, y - .5); pen.lineTo(width(), y - .5); pen.stroke();
    pen.fillStyle = colour("ink");
    pen.fillText(data.workers[worker], 8, y + Math.max(row / 2, 9), LEFT - 14);
    pen.fillStyle = colour("soft");
    if (n * row > 34) pen.fillText(`${n} slot${n > 1 ? "s" : ""}`, 8, y + Math.max(row / 2, 9) + 16);
  });
  pen.fillStyle = colour("ink");
  pen.fillText("trainer", 8, TOP + TRAINER / 2);
}

function drawAxis(pen) {
  const target = (view[1] - view[0]) / Math.max(width() / 120, 2);
  const power = 10 ** Math.floor(Math.log10(target));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= target);
  pen.strokeStyle = colour("line");
  pen.fillStyle = colour("soft");
  pen.textAlign = "center";
  for (let at = Math.ceil(view[0] / step) * step; at <= view[1]; at += step) {
    pen.beginPath(); pen.moveTo(x(at), TOP); pen.lineTo(x(at), height - AXIS); pen.stroke();
    if (at > view[0]) pen.fillText(seconds(at), x(at), height - AXIS / 2);
  }
  pen.textAlign = "left";
}

function drawBars(pen) {
  const fills = data.phases.map(colour), gap = row > 6 ? 1 : 0;
  data.attempts.forEach((attempt, index) => {
    const end = bars[index].length ? bars[index][bars[index].length - 1][2] : attempt[1];
    if (end < view[0] || attempt[1] > view[1]) return;
    const y = firstRow + attempt[0] * row;
    for (const [phase, from, to] of bars[index]) {
      if (to < view[0] || from > view[1]) continue;
      pen.fillStyle = fills[phase];
      pen.fillRect(x(from), y, Math.max(x(to) - x(from), .4), row - gap);
    }
    if (row > 6 && x(end) - x(attempt[1]) > 3) { pen.fillStyle = colour("paper"); pen.fillRect(x(end) - .6, y, .6, row); }
  });
}

function drawMarks(pen) {
  const last = { delivered: -1e9, published: -1e9 };
  for (const [from, to] of data.training) {
    pen.fillStyle = colour("trainer");
    pen.fillRect(x(from), TOP, Math.max(x(to) - x(from), 1), TRAINER);
  }
  for (const [at, kind, text] of data.marks) {
    pen.strokeStyle = pen.fillStyle = colour(kind);
    pen.setLineDash(kind === "delivered" ? [4, 3] : []);
    pen.beginPath(); pen.moveTo(x(at), TOP - 8); pen.lineTo(x(at), height - AXIS); pen.stroke();
    if (x(at) - last[kind] < 62) continue;
    pen.fillText(text, x(at) + 3, kind === "delivered" ? 12 : 26);
    last[kind] = x(at);
  }
  pen.setLineDash([]);
}

function found(event) {
  const box = canvas.getBoundingClientRect();
  const px = event.clientX - box.left, py = event.clientY - box.top;
  if (px < LEFT) return null;
  const at = time(px), slot = Math.floor((py - firstRow) / row);
  if (py >= TOP && py < TOP + TRAINER) return training(at);
  const near = data.marks.find(([when]) => Math.abs(x(when) - px) < 2);
  for (const index of inRow[slot] || []) {
    const bar = bars[index].find(([, from, to]) => from <= at && at < to);
    if (bar) return describe(data.attempts[index], bar) + (near ? `\n${near[2]}` : "");
  }
  return near ? `${near[2]} at ${seconds(near[0])}` : inRow[slot] ? `idle at ${seconds(at)}` : null;
}

function training(at) {
  const one = data.training.find(([from, to]) => from <= at && at <= to);
  return one ? `${one[2]}: ${seconds(one[1] - one[0])}` : `the trainer waits for a batch at ${seconds(at)}`;
}

function describe([, , rollout, group, tag, version, status], [phase, from, to]) {
  return `${data.phases[phase]} for ${seconds(to - from)}, from ${seconds(from)}\nrollout ${rollout}\n` +
    `group ${data.groups[group]}\ntag ${data.tags[tag]}\n` +
    `${version === null ? "no turn" : `version ${version}`} · ${data.statuses[status]}`;
}

canvas.addEventListener("pointermove", (event) => {
  if (drag) { drag[1] = event.offsetX; draw(); }
  const text = drag ? null : found(event);
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
});
canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
canvas.addEventListener("pointerdown", (event) => {
  if (event.offsetX >= LEFT) { drag = [event.offsetX, event.offsetX]; canvas.setPointerCapture(event.pointerId); }
});
canvas.addEventListener("pointerup", () => {
  if (drag && Math.abs(drag[1] - drag[0]) > 5) view = drag.map(time).sort((a, b) => a - b);
  drag = null;
  draw();
});
canvas.addEventListener("dblclick", () => { view = [0, Math.max(data.span, 1)]; draw(); });
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
