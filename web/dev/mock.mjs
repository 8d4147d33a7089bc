// A stand-in for the service with invented weights, for work on the page alone: `npm run mock`, then `npm run dev`.
// It computes real attention from seeded random vectors, so that every step agrees with the next. Not in the package.
// It also serves the built page with the service's Content-Security-Policy, at http://127.0.0.1:8765.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const PAGE = fileURLToPath(new URL("../../regard/explorer/page/", import.meta.url));
const PORT = Number(process.env.PORT ?? 8765);
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; " +
  "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const D = 16;
const E = 64;
const MODELS = [
  { name: "mock-transformer", architecture: "Transformer", layers: 3, heads: 4, kinds: ["self", "decoder", "cross"] },
  { name: "mock-rnn", architecture: "RNNSeq2Seq", layers: 1, heads: 1, kinds: ["cross"] },
];
const WORDS = Object.fromEntries(
  "the le,cat chat,sat s'assit,on sur,mat tapis,because parce_que,it il,was était,tired. fatigué.,a un,dog chien"
    .split(",")
    .map((pair) => pair.split(" ")),
);
const traces = new Map();

// --- numbers from names ---

function random(name) {
  let h = 2166136261;
  for (const c of name) h = Math.imul(h ^ c.codePointAt(0), 16777619) >>> 0;
  return () => {
    h = (h + 0x6d2b79f5) >>> 0;
    let t = Math.imul(h ^ (h >>> 15), h | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32 - 0.5;
  };
}
const vector = (name, size, scale = 2) => {
  const next = random(name);
  return Array.from({ length: size }, () => scale * (next() + next() + next()));
};
const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const softmax = (e) => {
  const top = Math.max(...e);
  const up = e.map((x) => (x === -Infinity ? 0 : Math.exp(x - top)));
  const sum = up.reduce((a, b) => a + b, 0);
  return up.map((x) => x / sum);
};

// --- text ---

function side(text, { start = false, end = false } = {}) {
  const [tokens, words] = [[], []];
  if (start) tokens.push({ text: "<s>", start: 0, end: 0, word: -1 });
  const characters = Array.from(text);
  for (let at = 0; at < characters.length; ) {
    if (/\s/.test(characters[at])) {
      at += 1;
      continue;
    }
    let to = at;
    while (to < characters.length && !/\s/.test(characters[to])) to += 1;
    const word = words.push({ text: characters.slice(at, to).join(""), start: at, end: to }) - 1;
    for (let a = at; a < to; a += 5) {
      const b = Math.min(to, a + 5);
      tokens.push({ text: characters.slice(a, b).join(""), start: a, end: b, word });
    }
    at = to;
  }
  if (end) tokens.push({ text: "</s>", start: characters.length, end: characters.length, word: -1 });
  return { text, tokens, words };
}

const translate = (text) =>
  text.split(/\s+/).filter(Boolean).map((word) => (WORDS[word.toLowerCase()] ?? word).replace("_", " ")).join(" ");

// --- attention ---

function sides(trace, kind) {
  return [kind === "self" ? trace.source : trace.target, kind === "decoder" ? trace.target : trace.source];
}

function steps(trace, kind, layer, head, query, score = "trained", key = 0) {
  const [rows, columns] = sides(trace, kind);
  const at = `${trace.model}/${kind}/${layer}/${head}`;
  const word = (s, i, of) => `${at}/${of}/${s.tokens[i].text.toLowerCase()}`;
  const place = (i, j) => Math.exp(-Math.abs(i - j - (kind === "cross" ? 1 : head % 3)) / 1.5);
  const q = vector(word(rows, query, "q"), D);
  const k = columns.tokens.map((_, j) =>
    vector(word(columns, j, "k"), D, 1).map((x, d) => x + q[d] * place(query, j) * 0.9),
  );
  const v = columns.tokens.map((_, j) => vector(word(columns, j, "v"), D));
  const additive = score === "additive";
  const w = vector(`${at}/w`, D);
  const products = k.map((row) => row.map((x, d) => (additive ? w[d] * Math.tanh(x + q[d]) : x * q[d])));
  const similarity = products.map((row) => row.reduce((a, b) => a + b, 0));
  const scale = additive ? null : 1 / Math.sqrt(D);
  const scaled = similarity.map((x) => (scale ?? 1) * x);
  const masked = scaled.map((x, j) => (kind === "decoder" && j > query ? -Infinity : x));
  const weights = softmax(masked);
  const weighted = v.map((row, j) => row.map((x) => x * weights[j]));
  const context = v[0].map((_, d) => weighted.reduce((a, row) => a + row[d], 0));
  const counterfactual = score !== "trained";
  return {
    query_input: vector(`${rows.tokens[query].text}/x`, E),
    key_input: vector(`${columns.tokens[key]?.text}/x`, E),
    q, k, v, products, similarity, scaled, masked: masked.map((x) => (x === -Infinity ? null : x)), weights, weighted,
    context,
    output: vector(`${at}/${query}/o`, E),
    recorded: counterfactual ? null : context.map((x) => Math.fround(x)),
    difference: counterfactual ? null : Math.max(...context.map((x) => Math.abs(x - Math.fround(x)))),
    score: additive ? "Additive(16, 16, 16)" : "Dot()",
    counterfactual,
    terms: additive ? "vᵀ tanh(W q + U k)" : "q·k",
    formula: additive ? "vᵀ tanh(W q + U k)" : "q·k / √d",
    scale,
  };
}

function weights(trace, kind, layer, head, query, measure) {
  const model = MODELS.find((m) => m.name === trace.model);
  const heads = head === "mean" ? [...Array(model.heads).keys()] : [Number(head)];
  const rows = heads.map((h) => {
    const found = steps(trace, kind, layer, h, query);
    return measure === "norms" ? found.weighted.map((row) => Math.sqrt(dot(row, row))) : found.weights;
  });
  return rows[0].map((_, j) => rows.reduce((sum, row) => sum + row[j], 0) / rows.length);
}

/** Attention and the residual, half and half, multiplied through the layers. */
function rollout(trace, layer, query) {
  let row = trace.source.tokens.map((_, j) => Number(j === query));
  for (let at = layer; at >= 0; at -= 1) {
    const next = row.map((x) => x / 2);
    row.forEach((x, i) => weights(trace, "self", at, "mean", i).forEach((w, j) => (next[j] += (x * w) / 2)));
    row = next;
  }
  return row;
}

const entropy = (row) => -row.reduce((a, p) => a + (p > 0 ? p * Math.log(p) : 0), 0);
const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const matrix = (trace, kind, layer, head) => sides(trace, kind)[0].tokens.map((_, i) => weights(trace, kind, layer, head, i));

/** A number per head, [layers][heads]. */
function perHead(trace, kind, make) {
  const { layers, heads } = MODELS.find((m) => m.name === trace.model);
  return Array.from({ length: layers }, (_, l) => Array.from({ length: heads }, (_, h) => make(l, h)));
}

function heads(trace, kind) {
  const of = (measure) => perHead(trace, kind, (l, h) => mean(matrix(trace, kind, l, h).map(measure)));
  return {
    kind, layers: of(entropy).length, heads: of(entropy)[0].length, entropy: of(entropy), sink: of((row) => row[0]),
    distance: of((row, i) => row.reduce((a, p, j) => a + p * Math.abs(i - j), 0)),
  };
}

const BASE = -7.25;
const effect = (trace, { kind, layer, head }) => vector(`${trace.model}/${kind}/${layer}/${head}/effect`, 1)[0] * (layer + 0.5) - 0.4;

function knockout(trace, out) {
  const given = trace.target.tokens.map((_, t) => out.reduce((a, one) => a + effect(trace, one) * (0.5 + vector(`${t}/${one.head}`, 1)[0]), 0));
  const change = given.reduce((a, b) => a + b, 0);
  return { base: BASE, log_prob: BASE + change, change, tokens: given };
}

function pooled(all, height, width) {
  const [tall, wide] = [Math.ceil(all.length / height), Math.ceil(all[0].length / width)];
  const [h, w] = [Math.ceil(all.length / tall), Math.ceil(all[0].length / wide)];
  const values = new Float32Array(h * w);
  all.forEach((row, r) => row.forEach((x, c) => {
    const at = Math.floor(r / tall) * w + Math.floor(c / wide);
    values[at] = Math.max(values[at], x);
  }));
  return { values, shape: [h, w] };
}

function align(trace, layer = 0, head = "mean", shift = trace.model === "mock-transformer", gold = "") {
  const { source, target } = trace;
  const matrix = target.words.map((_, j) => {
    const rows = target.tokens.flatMap((token, t) => (token.word === j ? [shift ? t : t - 1] : []));
    const found = rows.map((t) => weights(trace, "cross", layer, head, t, "weights"));
    return source.words.map((_, i) =>
      found.reduce((a, row) => a + row.reduce((b, x, s) => b + (source.tokens[s].word === i ? x : 0), 0), 0) / rows.length,
    );
  });
  const links = matrix.map((row, j) => [row.indexOf(Math.max(...row)), j]);
  return { weights: matrix, links, layer, head: head === "mean" ? null : Number(head), shift, aer: gold ? 0.25 : null };
}

// --- HTTP ---

const kinds = (model) =>
  model.kinds.map((kind) => ({
    kind, layers: model.layers, heads: model.heads, score: "Dot()",
    rows: kind === "self" ? "source" : "target", columns: kind === "decoder" ? "target" : "source",
  }));

function post(url, body) {
  const [, id] = /^\/api\/trace\/(\w+)\/knockout$/.exec(url.pathname) ?? [];
  if (id) return traces.has(id) ? [200, knockout(traces.get(id), body.heads)] : [404, { error: "this trace has expired: send the sentence again" }];
  const model = MODELS.find((m) => m.name === (body.model || MODELS[0].name));
  if (!model) return [404, { error: `no model is called ${body.model}` }];
  if (!body.text?.trim()) return [400, { error: "the sentence is empty" }];
  if (body.text.includes("busy")) return [429, { error: "the queue is full: try again in a moment" }];
  const translation = body.target || translate(body.text);
  const trace = { id: `t${traces.size}`, translation, model: model.name, kinds: kinds(model), note: "" };
  trace.source = side(body.text, { end: true });
  trace.target = side(translation, { start: true });
  trace.alignment = align(trace);
  traces.set(trace.id, trace);
  return [200, trace];
}

function get(url) {
  const ask = Object.fromEntries(url.searchParams);
  if (url.pathname === "/api/health") return [200, { status: "ok" }];
  if (url.pathname === "/api/models") {
    return [200, {
      models: MODELS.map((m, i) => ({ ...m, task: "translation", parameters: 12_300_000, default: i === 0, kinds: kinds(m), limit: 256 })),
      scores: ["trained", "dot", "additive", "general", "bilinear", "location", "relative", "rotary"],
      measures: ["weights", "norms"], version: "mock",
    }];
  }
  const [, id, what] = /^\/api\/trace\/(\w+)\/(\w+)$/.exec(url.pathname) ?? [];
  const trace = traces.get(id);
  if (!trace) return [404, { error: "this trace has expired: send the sentence again" }];
  const [layer, query] = [Number(ask.layer ?? 0), Number(ask.query)];
  if (what === "row") {
    const rolled = ask.measure === "rollout";
    const values = rolled ? rollout(trace, layer, query) : weights(trace, ask.kind, layer, ask.head, query, ask.measure);
    return [200, { values, query, kind: ask.kind, layer, head: ask.head, measure: ask.measure, entropy: entropy(values) }];
  }
  if (what === "steps") {
    return [200, steps(trace, ask.kind, layer, Number(ask.head), query, ask.score, Number(ask.key ?? 0))];
  }
  if (what === "tile") {
    const all = matrix(trace, ask.kind, layer, ask.head);
    return [200, pooled(all, Number(ask.height ?? 512), Number(ask.width ?? 512))];
  }
  if (what === "heads") return [200, heads(trace, ask.kind)];
  if (what === "effects") {
    const change = perHead(trace, ask.kind, (l, h) => knockout(trace, [{ kind: ask.kind, layer: l, head: h }]).change);
    return [200, { kind: ask.kind, base: BASE, change: ask.layer === undefined ? change : [change[layer]] }];
  }
  if (what === "align") {
    return [200, align(trace, layer, ask.head ?? "mean", ask.shift === undefined ? undefined : ask.shift === "1", ask.gold)];
  }
  return [404, { error: "not found" }];
}

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };

createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  const send = (status, type, body, more = {}) =>
    response.writeHead(status, { "Content-Type": type, "Content-Security-Policy": CSP, ...more }).end(body);
  try {
    if (url.pathname.startsWith("/api/")) {
      let body = "";
      for await (const part of request) body += part;
      const [status, answer] = request.method === "POST" ? post(url, JSON.parse(body)) : get(url);
      if (url.pathname.endsWith("/effects")) await new Promise((done) => setTimeout(done, 1200));
      if (answer.values instanceof Float32Array) {
        const shape = { "X-Regard-Shape": answer.shape.join(","), "X-Regard-Exact": "exact" };
        send(status, "application/octet-stream", Buffer.from(answer.values.buffer), shape);
      } else send(status, "application/json", JSON.stringify(answer), status === 429 ? { "Retry-After": "3" } : {});
    } else {
      const path = normalize(url.pathname === "/" ? "/index.html" : url.pathname);
      send(200, `${TYPES[extname(path)] ?? "text/plain"}; charset=utf-8`, await readFile(join(PAGE, path)));
    }
  } catch (error) {
    send(404, "application/json", JSON.stringify({ error: String(error) }));
  }
}).listen(PORT, "127.0.0.1", () => console.log(`http://127.0.0.1:${PORT}`));
