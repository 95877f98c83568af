// The status page: reads /metrics of the same origin every two seconds and shows it.
"use strict";

const PERIOD_MS = 2000;
const UNKNOWN = "not published";
// What grows is shown per second, for which two readings are needed.
const PENDING = { value: "…", note: "after the next reading" };

// One sample a line of the Prometheus text format: name, optional labels, value.
const SAMPLE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;

function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : SAMPLE.exec(line);
    if (match === null) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    const value = match[3] === "+Inf" ? Infinity : Number(match[3]);
    samples.push({ name: match[1], labels, value });
  }
  return samples;
}

// The sum of all samples of a name with these labels; null when there are none.
function total(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  const found = samples.filter(
    (sample) => sample.name === name && wanted.every(([key, value]) => sample.labels[key] === value),
  );
  return found.length === 0 ? null : found.reduce((sum, sample) => sum + sample.value, 0);
}

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes.toFixed(unit === 0 ? 0 : 1)} ${units[unit]}`;
}

function formatSeconds(seconds) {
  if (seconds < 0.001) return `${(1e6 * seconds).toFixed(0)} µs`;
  return seconds < 1 ? `${(1e3 * seconds).toFixed(1)} ms` : `${seconds.toFixed(1)} s`;
}

function formatCount(count) {
  return count.toLocaleString("en", { maximumFractionDigits: 1 });
}

// A tier: its size, with its budget and its entries where they are published.
function tier(now, component) {
  const used = total(now.samples, `fonn_${component}_used_bytes`);
  const budget = total(now.samples, `fonn_${component}_budget_bytes`);
  const entries = total(now.samples, `fonn_${component}_entries`);
  if (used === null) return null;
  const notes = [];
  if (budget !== null) notes.push(`of ${formatBytes(budget)}`);
  if (entries !== null) notes.push(`${formatCount(entries)} entries`);
  return { value: formatBytes(used), note: notes.join(", "), share: budget > 0 ? used / budget : null };
}

// The growth of a counter per second since the last reading; null at first and after a restart.
function rate(now, before, name) {
  if (before === null) return null;
  const [newer, older] = [total(now.samples, name), total(before.samples, name)];
  if (newer === null || older === null || newer < older) return null;
  return (newer - older) / ((now.atMs - before.atMs) / 1000);
}

// The part of lookups that found their key, since the start and since the last reading.
function hitRatio(now, before) {
  const ratio = (hits, misses) => (hits + misses > 0 ? `${((100 * hits) / (hits + misses)).toFixed(1)} %` : null);
  const hits = total(now.samples, "fonn_hits_total");
  const misses = total(now.samples, "fonn_misses_total");
  if (hits === null || misses === null) return null;
  const recent = ratio(rate(now, before, "fonn_hits_total") ?? 0, rate(now, before, "fonn_misses_total") ?? 0);
  return {
    value: ratio(hits, misses) ?? "no lookups yet",
    note: recent === null ? "since the start" : `since the start; ${recent} now`,
  };
}

function hitsByTier(now, component) {
  const hits = total(now.samples, "fonn_hits_total", { tier: component });
  return hits === null ? null : { value: formatCount(hits), note: "since the start" };
}

function gauge(now, name, format) {
  const value = total(now.samples, name);
  return value === null ? null : { value: format(value), note: "" };
}

// What `show` makes of the rates of counters; PENDING while there is only one reading.
function rates(now, before, names, show) {
  if (names.some((name) => total(now.samples, name) === null)) return null;
  const values = names.map((name) => rate(now, before, name));
  return values.includes(null) ? PENDING : show(...values);
}

function requests(now, before) {
  const names = ["fonn_request_duration_seconds_count", "fonn_request_duration_seconds_sum"];
  return rates(now, before, names, (count, seconds) => ({
    value: `${formatCount(count)} /s`,
    note: count > 0 ? `${formatSeconds(seconds / count)} on average` : "none at the moment",
  }));
}

function traffic(now, before) {
  return rates(now, before, ["fonn_sent_bytes_total", "fonn_received_bytes_total"], (sent, received) => ({
    value: `${formatBytes(sent)}/s`,
    note: `sent; ${formatBytes(received)}/s received`,
  }));
}

function cpu(now, before) {
  return rates(now, before, ["process_cpu_seconds_total"], (cores) => ({
    value: `${(100 * cores).toFixed(0)} %`,
    note: "of one core",
  }));
}

function uptime(now) {
  const started = total(now.samples, "process_start_time_seconds");
  if (started === null) return null;
  const seconds = Math.max(0, Math.floor(now.atMs / 1000 - started));
  const minutes = Math.floor(seconds / 60);
  if (minutes === 0) return { value: `${seconds} s`, note: "" };
  const [days, hours] = [Math.floor(minutes / 1440), Math.floor(minutes / 60) % 24];
  return { value: `${days > 0 ? `${days} d ` : ""}${hours} h ${minutes % 60} min`, note: "" };
}

const FIGURES = [
  ["RAM tier", (now) => tier(now, "ram")],
  ["Disk tier", (now) => tier(now, "disk")],
  ["Requests", requests],
  ["Traffic", traffic],
  ["Hit ratio", hitRatio],
  ["Hits from RAM", (now) => hitsByTier(now, "ram")],
  ["Hits from disk", (now) => hitsByTier(now, "disk")],
  ["Connections", (now) => gauge(now, "fonn_connections", formatCount)],
  ["Resident memory", (now) => gauge(now, "process_resident_memory_bytes", formatBytes)],
  ["CPU", cpu],
  ["Up", uptime],
];

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

function figureCard(name, figure) {
  const card = element("div", "figure");
  card.append(element("div", "name", name), element("div", "value", figure?.value ?? "–"));
  if (figure !== null && figure.share !== undefined && figure.share !== null) {
    const meter = element("meter");
    meter.value = Math.min(1, figure.share);
    meter.title = `${(100 * figure.share).toFixed(1)} % of the budget`;
    card.append(meter);
  }
  card.append(element("div", "note", figure === null ? UNKNOWN : figure.note));
  return card;
}

// In full, with its thousands set apart.
function formatSample(value) {
  return Number.isFinite(value) ? value.toLocaleString("en", { maximumFractionDigits: 6 }) : String(value);
}

function sampleRow(sample) {
  const labels = Object.entries(sample.labels).map(([key, value]) => `${key}="${value}"`);
  const name = labels.length === 0 ? sample.name : `${sample.name}{${labels.join(", ")}}`;
  const row = element("tr");
  const value = element("td", "", formatSample(sample.value));
  if (sample.name.includes("_bytes")) value.title = formatBytes(sample.value);
  row.append(element("td", "", name), value);
  return row;
}

function show(now, before) {
  byId("figures").replaceChildren(...FIGURES.map(([name, read]) => figureCard(name, read(now, before))));
  const shown = now.samples.filter((sample) => !sample.name.endsWith("_bucket"));
  byId("samples").replaceChildren(...shown.map(sampleRow));
}

function setStatus(text, isBad) {
  const status = byId("status");
  status.textContent = text;
  status.classList.toggle("bad", isBad);
}

async function readMetrics() {
  const options = { cache: "no-store", signal: AbortSignal.timeout(5 * PERIOD_MS) };
  const response = await fetch("/metrics", options);
  if (!response.ok) throw new Error(`/metrics answered ${response.status}`);
  return { atMs: Date.now(), samples: parseMetrics(await response.text()) };
}

async function run() {
  let before = null;
  for (;;) {
    try {
      const now = await readMetrics();
      show(now, before);
      setStatus(`as of ${new Date(now.atMs).toLocaleTimeString()}`, false);
      before = now;
    } catch (error) {
      // What is shown stays, marked as old; the rates start anew.
      setStatus(`cannot read /metrics: ${error.message}`, true);
      before = null;
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

run();
