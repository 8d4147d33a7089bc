import { describe, expect, it, vi } from "vitest";
import { Recent } from "../src/lib/recent";
import { SourceError } from "../src/lib/source";
import { sequential } from "../src/lib/colour";
import { legend, mapping, ramp, share, stepOf, STEPS } from "../src/lib/long/colour";
import { cells, nameOf, parent, refinable, segments, stripHeight, tokensOf, topLevel, TILE, type Size } from "../src/lib/long/grid";
import { clean } from "../src/lib/long/labels";
import { FLIGHTS, Loader } from "../src/lib/long/loader";
import { opened, tileCode } from "../src/lib/long/python";
import { candidates, readRow, WIDTH } from "../src/lib/long/row";
import { cellAt, scene, summary } from "../src/lib/long/scene";
import { merged, parts, plan, SAMPLES, standIn, type Asked, type Block, type Tile } from "../src/lib/long/tiles";
import { fromPlace, inside, least, levelOf, MOST, pan, snapped, span, tickStep, toPlace, visible, whole, zoom } from "../src/lib/long/viewport";

const BOOK: Size = { rows: 100_000, columns: 100_000 };

/** A matrix that can be told from its indices, pooled as the service does it: cells of one size, the last one smaller. */
const weightAt = (row: number, column: number) => (column > row ? 0 : ((row * 31 + column * 17) % 97) / 97);

function served({ rows, columns, height, width, samples }: Asked): Block {
  const size = (span: [number, number], most: number) => Math.max(1, Math.ceil((span[1] - span[0]) / most));
  const [tall, wide] = [size(rows, height), size(columns, width)];
  const [h, w] = [Math.ceil((rows[1] - rows[0]) / tall), Math.ceil((columns[1] - columns[0]) / wide)];
  const values = new Float32Array(h * w);
  for (let y = 0; y < h; y += 1) {
    for (let row = rows[0] + y * tall; row < Math.min(rows[1], rows[0] + (y + 1) * tall); row += samples === null ? 1 : tall) {
      for (let column = columns[0]; column < columns[1]; column += 1) {
        const at = y * w + Math.floor((column - columns[0]) / wide);
        values[at] = Math.max(values[at]!, weightAt(row, column));
      }
    }
  }
  return { values, height: h, width: w, exact: samples === null || samples >= tall };
}

const keep = (loader: Loader, tile: Tile) => loader.cache.put(tile.name, tile);
const tileOf = (z: number, row: number, column: number, size: Size, exact = 1): Tile => {
  const { height, width } = cells({ z, row, column }, size);
  const made = { z, row, column, name: nameOf({ z, row, column }), height, width, version: 1 };
  return { ...made, values: new Float32Array(height * width), exact: new Uint8Array(height).fill(exact) };
};

const store = (tiles: Tile[]) => {
  const all = new Map(tiles.map((tile) => [tile.name, tile]));
  return (name: string) => all.get(name);
};

describe("tiles on a grid", () => {
  it("end at the edges of the matrix", () => {
    expect(topLevel(BOOK)).toBe(9);
    expect(topLevel({ rows: 256, columns: 3 })).toBe(0);
    expect(topLevel({ rows: 257, columns: 3 })).toBe(1);
    expect(cells({ z: 9, row: 0, column: 0 }, BOOK)).toEqual({ height: 196, width: 196 });
    expect(cells({ z: 0, row: 390, column: 0 }, BOOK)).toEqual({ height: 160, width: 256 });
    expect(parent({ z: 0, row: 391, column: 5 })).toEqual({ z: 1, row: 195, column: 2 });
    expect(tokensOf(195, 9, 100_000)).toEqual([99_840, 100_000]);
  });

  it("ask for a last cell that is not full by itself, so that all cells stay on one grid", () => {
    expect(segments(0, 196, 9, 100_000)).toEqual([
      { first: 0, end: 99_840, count: 195 },
      { first: 99_840, end: 100_000, count: 1 },
    ]);
    expect(segments(0, 256, 2, 100_000)).toEqual([{ first: 0, end: 1024, count: 256 }]);
    expect(segments(195, 196, 9, 100_000)).toEqual([{ first: 99_840, end: 100_000, count: 1 }]);
    expect(segments(0, 1, 9, 512)).toEqual([{ first: 0, end: 512, count: 1 }]);
  });

  it("hold the pooled weights of their tokens, at the edges too", () => {
    const size = { rows: 1100, columns: 700 };
    const job = { address: { z: 2, row: 1, column: 0 }, from: 0, to: 19, samples: null };
    const tile = merged(job, size, parts(job, size).map((part) => ({ part, block: served(part) })));
    expect([tile.height, tile.width]).toEqual([19, 175]);
    for (const [y, x] of [[0, 0], [3, 100], [18, 174], [18, 3]] as const) {
      let most = 0;
      for (let row = 1024 + 4 * y; row < Math.min(1100, 1028 + 4 * y); row += 1) {
        for (let column = 4 * x; column < Math.min(700, 4 * x + 4); column += 1) most = Math.max(most, weightAt(row, column));
      }
      expect(tile.values[y * 175 + x]).toBe(Math.fround(most));
    }
    expect([...tile.exact]).toEqual(Array(19).fill(1));
  });

  it("are four requests in the corner of a matrix that no cell fits, and tell when an answer has another shape", () => {
    const job = { address: { z: 9, row: 0, column: 0 }, from: 0, to: 196, samples: 1 };
    const asked = parts(job, BOOK);
    expect(asked.map(({ rows, columns }) => [rows[0], columns[0]])).toEqual([[0, 0], [0, 99_840], [99_840, 0], [99_840, 99_840]]);
    const wrong = { values: new Float32Array(1), height: 1, width: 1, exact: true };
    expect(() => merged(job, BOOK, asked.map((part) => ({ part, block: wrong })))).toThrow(/195 × 195/);
  });

  it("refine in strips that cost the same at every level", () => {
    expect(stripHeight(0, 100_000)).toBe(256);
    expect(stripHeight(7, 100_000)).toBe(5);
    expect(stripHeight(30, 100_000)).toBe(1);
    expect([refinable(9, 100_000), refinable(12, 1_000_000), refinable(8, 1_000_000)]).toEqual([true, false, true]);
  });
});

describe("the viewport", () => {
  const view = whole(BOOK, 800, 600);

  it("shows all at first, and no less than all", () => {
    expect(span(view, BOOK)).toEqual({ rows: [0, 100_000], columns: [0, 100_000] });
    expect(zoom(view, 0.1, 400, 300, BOOK)).toEqual(view);
    expect(levelOf(view, BOOK)).toBe(8);
  });

  it("zooms around the pointer", () => {
    const before = fromPlace({ x: 50_000, y: 40_000, z: 3 }, 800, 600, BOOK);
    const after = zoom(before, 2.7, 123, 456, BOOK);
    expect(after.x + 123 / after.scale).toBeCloseTo(before.x + 123 / before.scale, 6);
    expect(after.y + 456 / after.scale).toBeCloseTo(before.y + 456 / before.scale, 6);
    expect(zoom(before, 1e9, 0, 0, BOOK).scale).toBe(MOST);
  });

  it("pans by pixels and stays on the matrix", () => {
    const at = fromPlace({ x: 50_000, y: 40_000, z: 3 }, 800, 600, BOOK);
    expect(pan(at, 8, -16, BOOK).x - at.x).toBeCloseTo(64);
    expect(pan(at, 8, -16, BOOK).y - at.y).toBeCloseTo(-128);
    const far = pan(at, 1e9, 1e9, BOOK);
    expect(far.x).toBeCloseTo(100_000 - 800 * 8 + 24 * 8);
    expect(inside({ ...at, x: -1e9 }, BOOK).x).toBeCloseTo(-24 * 8);
  });

  it("comes back from its place", () => {
    const at = fromPlace({ x: 51_234.5, y: 40_000.25, z: -2.5 }, 801, 599, BOOK);
    const place = toPlace(at);
    expect([place.x, place.y, place.z].map((value) => Number(value.toFixed(6)))).toEqual([51_234.5, 40_000.25, -2.5]);
  });

  it("is drawn from a whole pixel on", () => {
    const at = snapped(fromPlace({ x: 51_234.56, y: 40_000.25, z: 2.3 }, 801, 599, BOOK), 1.5);
    for (const edge of [at.x, at.y]) expect((edge * at.scale * 1.5) % 1).toBeCloseTo(0, 6);
  });

  it("takes the level whose cells are one to two pixels", () => {
    for (const z of [0.001, 0.5, 1, 1.5, 2, 6.99]) {
      const at = fromPlace({ x: 5e4, y: 5e4, z }, 800, 600, BOOK);
      const pixels = 2 ** levelOf(at, BOOK) * at.scale;
      expect(pixels).toBeGreaterThanOrEqual(1 - 1e-6);
      expect(pixels).toBeLessThan(2);
    }
    expect(levelOf(fromPlace({ x: 5e4, y: 5e4, z: -4 }, 800, 600, BOOK), BOOK)).toBe(0);
  });

  it("lists the tiles on the screen, the middle first", () => {
    const at = fromPlace({ x: 50_000, y: 50_000, z: 0 }, 800, 600, BOOK);
    const tiles = visible(at, BOOK, 0);
    expect(new Set(tiles.map(nameOf)).size).toBe(tiles.length);
    expect(tiles[0]).toEqual({ z: 0, row: 195, column: 195 });
    for (const [x, y] of [[at.x, at.y], [at.x + 799, at.y + 599]] as const) {
      expect(tiles).toContainEqual({ z: 0, row: Math.floor(y / TILE), column: Math.floor(x / TILE) });
    }
    const small = { rows: 3, columns: 2000 };
    expect(visible(whole(small, 800, 600), small, 2).map(nameOf).sort()).toEqual(["2/0/0", "2/0/1"]);
    expect(least(small, 802, 600)).toBe(0.4);
  });

  it("has marks at round numbers", () => {
    expect(tickStep(0.006, 56)).toBe(10_000);
    expect(tickStep(1, 56)).toBe(100);
    expect(tickStep(12, 56)).toBe(5);
    expect(tickStep(100, 56)).toBe(1);
  });
});

describe("what is asked for", () => {
  const shown = visible(whole(BOOK, 1800, 1800), BOOK, 6);

  it("an overview, then the screen from its middle, then exact strips", () => {
    const have = new Map<string, Tile>();
    const get = (name: string) => have.get(name);
    expect(plan(shown, BOOK, get)).toEqual([{ address: { z: 9, row: 0, column: 0 }, from: 0, to: 196, samples: 1 }]);
    have.set("9/0/0", tileOf(9, 0, 0, BOOK, 0));
    const jobs = plan(shown, BOOK, get);
    expect(jobs.map((job) => job.address)).toEqual(shown);
    expect(jobs.every((job) => job.samples === SAMPLES && job.from === 0)).toBe(true);
    for (const address of shown) have.set(nameOf(address), tileOf(address.z, address.row, address.column, BOOK, 0));
    have.get(nameOf(shown[0]!))!.exact.fill(1, 0, 20);
    const finer = plan(shown, BOOK, get);
    expect(finer[0]).toEqual({ address: shown[0], from: 20, to: 30, samples: null });
    expect(finer.every((job) => job.samples === null)).toBe(true);
    expect(plan(shown, BOOK, get, false)).toEqual([]);
    const huge = { rows: 1_000_000, columns: 1_000_000 };
    expect(plan([{ z: 12, row: 0, column: 0 }], huge, store([tileOf(12, 0, 0, huge, 0)]))).toEqual([]);
    for (const tile of have.values()) tile.exact.fill(1);
    expect(plan(shown, BOOK, get)).toEqual([]);
  });

  it("single pairs are exact at once, and do not wait for the overview", () => {
    const near = visible(fromPlace({ x: 5e4, y: 5e4, z: -4 }, 800, 600, BOOK), BOOK, 0);
    const jobs = plan(near, BOOK, () => undefined);
    expect(jobs).toContainEqual({ address: near[0], from: 0, to: 256, samples: null });
  });

  it("draws a coarser tile where a finer one is missing", () => {
    const coarse = tileOf(9, 0, 0, BOOK);
    expect(standIn({ z: 3, row: 20, column: 7 }, BOOK, store([coarse]))).toBe(coarse);
    const view = fromPlace({ x: 30_000, y: 70_000, z: 3 }, 800, 600, BOOK);
    const [first] = scene(view, BOOK, store([coarse]));
    expect(first!.coarser).toBe(6);
    expect(first!.size).toBeCloseTo(512 / 8);
    expect((first!.x * 512 - view.x) * view.scale).toBeCloseTo(first!.left);
  });

  it("forgets the tiles that were used least recently", () => {
    const gone: string[] = [];
    const cache = new Recent<Tile>(3 * 256 * 256 * 4, ({ values }) => values.byteLength, (tile) => gone.push(tile.name));
    const put = (tile: Tile) => cache.put(tile.name, tile);
    for (const column of [0, 1, 2]) put(tileOf(0, 0, column, BOOK));
    cache.use("0/0/0");
    put(tileOf(0, 0, 3, BOOK));
    expect(gone).toEqual(["0/0/1"]);
    put(tileOf(0, 0, 3, BOOK)); // again: no more bytes
    expect(gone).toEqual(["0/0/1"]);
    expect(cache.size).toBe(3 * 256 * 256 * 4);
  });
});

describe("the cache", () => {
  it("makes an answer once, and keeps what was asked for last", async () => {
    const cache = new Recent<{ name: string }>(2);
    const make = vi.fn((name: string) => Promise.resolve({ name }));
    for (const name of ["a", "b", "a", "c", "a"]) expect((await cache.ask(name, () => make(name))).name).toBe(name);
    expect(make.mock.calls.flat()).toEqual(["a", "b", "c"]);
    await cache.ask("b", () => make("b")); // the one that had gone
    expect(make).toHaveBeenCalledTimes(4);
  });
});

describe("the loader", () => {
  const size = { rows: 2000, columns: 2000 };
  const settle = () => new Promise((done) => setTimeout(done, 5));

  it("fills the screen and makes it exact, as the dense matrix has it", async () => {
    const fetch = vi.fn((asked: Asked) => Promise.resolve(served(asked)));
    const loader = new Loader(size, fetch, () => {});
    const view = whole(size, 700, 700);
    loader.show(visible(view, size, levelOf(view, size)));
    for (let turn = 0; turn < 200 && loader.asked; turn += 1) await settle();
    const { exact, known, cells: [top] } = summary(view, size, loader.get, 5);
    expect([known, exact]).toEqual([1, 1]);
    expect(top!.value).toBe(Math.fround(96 / 97));
    expect(cellAt(1999, 1999, 2, size, loader.get)).toMatchObject({ rows: [1996, 2000], exact: true });
    expect(fetch.mock.calls[0]![0]).toMatchObject({ rows: [0, 2000], samples: 1 });
    loader.stop();
  });

  it("asks no more for tiles that are there: away and back, and in and out", async () => {
    const fetch = vi.fn((asked: Asked) => Promise.resolve(served(asked)));
    const loader = new Loader(size, fetch, () => {});
    const [near, far] = [fromPlace({ x: 300, y: 300, z: 0 }, 300, 300, size), fromPlace({ x: 1700, y: 1700, z: 0 }, 300, 300, size)];
    const places = [near, far, whole(size, 700, 700)];
    const show = async (view: typeof near) => {
      loader.show(visible(view, size, levelOf(view, size)));
      for (let turn = 0; turn < 200 && loader.asked; turn += 1) await settle();
    };
    for (const view of places) await show(view);
    const asked = fetch.mock.calls.length;
    expect(asked).toBeGreaterThan(places.length);
    for (const view of [...places, ...places.reverse()]) await show(view);
    expect(fetch).toHaveBeenCalledTimes(asked);
    loader.stop();
  });

  it("has few requests under way and takes back those that left the screen", async () => {
    const signals: AbortSignal[] = [];
    const loader = new Loader(BOOK, (_, signal) => (signals.push(signal), new Promise(() => {})), () => {});
    keep(loader, tileOf(9, 0, 0, BOOK));
    loader.show(visible(whole(BOOK, 1800, 1800), BOOK, 6));
    await settle();
    expect(signals.length).toBe(FLIGHTS);
    loader.show([{ z: 3, row: 10, column: 10 }]);
    await settle();
    expect(signals.map((signal) => signal.aborted)).toEqual([true, true, true, true, false]);
    loader.stop();
    expect(signals.at(-1)!.aborted).toBe(true);
  });

  it("refines one strip at a time", async () => {
    const asked: Asked[] = [];
    const loader = new Loader(BOOK, (one) => (asked.push(one), new Promise(() => {})), () => {});
    for (const column of [0, 1]) keep(loader, tileOf(6, 1, column, BOOK, 0));
    keep(loader, tileOf(9, 0, 0, BOOK));
    loader.show([0, 1].map((column) => ({ z: 6, row: 1, column })));
    await settle();
    expect(asked.map((one) => [one.samples, one.height])).toEqual([[null, stripHeight(6, 100_000)]]);
    loader.stop();
  });

  it("says what went wrong and tries again when told to", async () => {
    let broken = true;
    const fetch = (asked: Asked) => (broken ? Promise.reject(new SourceError("gone", 404)) : Promise.resolve(served(asked)));
    const loader = new Loader({ rows: 20, columns: 20 }, fetch, () => {});
    loader.show([{ z: 0, row: 0, column: 0 }]);
    await settle();
    expect(loader.trouble).toEqual({ message: "gone", again: null });
    broken = false;
    loader.retry();
    await settle();
    expect(loader.trouble).toBeNull();
    expect(loader.get("0/0/0")?.exact[19]).toBe(1);
  });
});

describe("one row", () => {
  it("has its strongest keys in the stretches of the largest maxima", () => {
    expect(candidates([0.1, 0.5, 0.2, 0.4], 10, 35, 2)).toEqual([[10, 20], [30, 35]]);
    expect(candidates([0.1, 0.5, 0.2, 0.4], 10, 35, 3)).toEqual([[10, 35]]);
    expect(candidates([1, 1, 1], 300, 900, 3)).toEqual([[0, 300], [300, 600], [600, 900]]);
    expect(candidates([1], 1000, 1000, 1)).toEqual([[0, WIDTH], [WIDTH, 1000]]);
  });

  it("is read exactly", async () => {
    const keys = 5000;
    const fetch = vi.fn((asked: Asked) => Promise.resolve(served(asked)));
    const facts = await readRow(4321, keys, 7, fetch, new AbortController().signal);
    const dense = [...Array(keys).keys()].map((key) => Math.fround(weightAt(4321, key))).sort((a, b) => b - a);
    expect(facts.strongest.map(({ value }) => value)).toEqual(dense.slice(0, 7));
    for (const { key, value } of facts.strongest) expect(value).toBe(Math.fround(weightAt(4321, key)));
    expect(facts.profile.length).toBe(Math.ceil(keys / facts.cell));
    for (const [asked] of fetch.mock.calls) expect(asked.width).toBeLessThanOrEqual(WIDTH);
  });
});

describe("colours of weights", () => {
  it("are the page's sequential ones", () => {
    for (const dark of [false, true]) {
      const bytes = ramp(dark);
      expect(bytes).toHaveLength(4 * (STEPS + 1));
      expect(stepOf(NaN, mapping("log", 1))).toBe(STEPS);
      for (const step of [0, 100, STEPS - 1]) {
        expect(`rgb(${[...bytes.subarray(4 * step, 4 * step + 3)].join(", ")})`).toBe(sequential(1, dark)(step / (STEPS - 1)));
      }
    }
  });

  it("run over six powers of ten, or from nothing to a round number", () => {
    const log = mapping("log", 0.7);
    expect([log.bottom, log.top]).toEqual([1e-6, 1]);
    expect([0, 1e-9, 1e-6, 1e-3, 1, 5].map((value) => Number(share(value, log).toFixed(9)))).toEqual([0, 0, 0, 0.5, 1, 1]);
    expect(mapping("log", 1).top).toBe(1);
    expect(mapping("log", 256).top).toBe(1000);
    const linear = mapping("linear", 0.013);
    expect(linear.top).toBeCloseTo(0.02);
    expect([0, 0.01, 0.02, 1].map((value) => stepOf(value, linear))).toEqual([0, 128, 255, 255]);
    expect(mapping("linear", 0).top).toBe(1);
    expect(legend(log).map((value) => Math.round(Math.log10(value)))).toEqual([-6, -5, -4, -3, -2, -1, 0]);
  });
});

describe("words", () => {
  it("show tokens as one reads them", () => {
    expect(["Ġthe", "▁of", "\n", " ", "a\tb", "."].map(clean)).toEqual(["the", "of", "↵", "␣", "a⇥b", "."]);
  });

  it("give the cells on the screen in Python", () => {
    const code = tileCode(opened("a.safetensors"), "", "self", 1, 2, "max", whole(BOOK, 800, 600), BOOK);
    expect(code).toContain('trace.tile(1, 2, rows=(0, 99840), cols=(0, 99840), size=(390, 390), pool="max", kind="self")');
  });
});
