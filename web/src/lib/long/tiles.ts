// Tiles: what is known of each, and what to ask for, in a sensible order.

import { cells, nameOf, parent, refinable, segments, stripHeight, TILE, topLevel, type Address, type Size } from "./grid";

export interface Tile extends Address {
  name: string;
  height: number;
  width: number;
  /** [height][width] */
  values: Float32Array;
  /** Per row of cells: 1 where every pair was looked at. */
  exact: Uint8Array;
  /** Counts changes. */
  version: number;
}

/** Rows of cells of a tile to be asked for: all from a few rows each, or some exactly. */
export interface Job {
  address: Address;
  from: number;
  to: number;
  /** null asks for every row. */
  samples: number | null;
}

export const SAMPLES = 2;
/** Levels that cost no more than their samples would. */
const DIRECT = 1;

/**
 * What to ask for, in order: an overview, the tiles on the screen, and only then what makes those exact, a strip at a
 * time. `shown` is sorted by importance.
 */
export function plan(shown: Address[], size: Size, get: (name: string) => Tile | undefined, refine = true): Job[] {
  const top: Address = { z: topLevel(size), row: 0, column: 0 };
  const overview = shown.some(({ z }) => z > DIRECT && z < top.z);
  if (overview && !get(nameOf(top))) return [first(top, size, 1)]; // alone: it is here soonest
  const missing = [top, ...shown].filter((address, at, all) => {
    return !get(nameOf(address)) && all.findIndex((other) => nameOf(other) === nameOf(address)) === at;
  });
  if (missing.length) return missing.map((address) => first(address, size, SAMPLES));
  return refine ? shown.flatMap((address) => next(address, size, get(nameOf(address))!)) : [];
}

function first(address: Address, size: Size, samples: number): Job {
  return { address, from: 0, to: cells(address, size).height, samples: address.z <= DIRECT ? null : samples };
}

/** The first rows of a tile that are only sampled. */
function next(address: Address, size: Size, tile: Tile): Job[] {
  const from = tile.exact.indexOf(0);
  if (from < 0 || !refinable(address.z, size.columns)) return [];
  let to = from;
  const most = Math.min(tile.height, from + stripHeight(address.z, size.columns));
  while (to < most && !tile.exact[to]) to += 1;
  return [{ address, from, to, samples: null }];
}

export const jobName = ({ address, from, to, samples }: Job) => `${nameOf(address)}:${from}:${to}:${samples}`;

export interface Block {
  values: Float32Array;
  height: number;
  width: number;
  exact: boolean;
}

export interface Asked {
  rows: [number, number];
  columns: [number, number];
  height: number;
  width: number;
  samples: number | null;
}

export interface Part extends Asked {
  /** Where the answer goes, in cells of the job. */
  top: number;
  left: number;
}

/** The requests that make a job: one, except at the edges of the matrix. */
export function parts({ address, from, to, samples }: Job, size: Size): Part[] {
  const { width } = cells(address, size);
  const [firstRow, firstColumn] = [address.row * TILE, address.column * TILE];
  const out: Part[] = [];
  let top = 0;
  for (const down of segments(firstRow + from, firstRow + to, address.z, size.rows)) {
    let left = 0;
    for (const across of segments(firstColumn, firstColumn + width, address.z, size.columns)) {
      out.push({
        rows: [down.first, down.end],
        columns: [across.first, across.end],
        height: down.count,
        width: across.count,
        samples,
        top,
        left,
      });
      left += across.count;
    }
    top += down.count;
  }
  return out;
}

/** A tile with the answers of a job in it; `old` is what was known. */
export function merged(job: Job, size: Size, answers: { part: Part; block: Block }[], old?: Tile): Tile {
  const { height, width } = cells(job.address, size);
  const tile: Tile = old ?? {
    ...job.address,
    name: nameOf(job.address),
    height,
    width,
    values: new Float32Array(height * width),
    exact: new Uint8Array(height),
    version: 0,
  };
  for (let row = job.from; row < job.to; row += 1) {
    tile.exact[row] = Number(answers.every(({ part, block }) => block.exact || row - job.from < part.top || row - job.from >= part.top + part.height));
  }
  for (const { part, block } of answers) {
    if (block.height !== part.height || block.width !== part.width) {
      throw new Error(`the service made ${block.height} × ${block.width} cells where ${part.height} × ${part.width} were asked for`);
    }
    for (let row = 0; row < part.height; row += 1) {
      const at = (job.from + part.top + row) * width + part.left;
      tile.values.set(block.values.subarray(row * part.width, (row + 1) * part.width), at);
    }
  }
  return { ...tile, version: tile.version + 1 };
}

/** The nearest tile that is here and covers this one: itself, or a coarser one. */
export function standIn(address: Address, size: Size, get: (name: string) => Tile | undefined): Tile | undefined {
  for (let at = address; at.z <= topLevel(size); at = parent(at)) {
    const tile = get(nameOf(at));
    if (tile) return tile;
  }
  return undefined;
}
