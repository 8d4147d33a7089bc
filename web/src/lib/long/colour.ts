// Colours of weights: what the fragment shader does, and the same on the CPU.

import { sequential } from "../colour";

export type Scale = "log" | "linear";

/** A value is drawn in colour `share` of the ramp: (log₂ v − low) · by, or v · by, between 0 and 1. */
export interface Mapping {
  scale: Scale;
  /** The ends of the scale, as its legend says them. */
  bottom: number;
  top: number;
  low: number;
  by: number;
}

export const STEPS = 256;
/** What is drawn for NaN, which is no weight, behind the others in the ramp. */
const NO_NUMBER = [214, 0, 110, 255];
/** How many powers of ten the logarithmic scale has. */
export const DECADES = 6;

/** `largest` is the largest value that is shown; the ends are round, so that they rarely move. */
export function mapping(scale: Scale, largest: number): Mapping {
  const most = largest > 0 && Number.isFinite(largest) ? largest : 1;
  if (scale === "linear") {
    const top = roundUp(most);
    return { scale, bottom: 0, top, low: 0, by: 1 / top };
  }
  const top = 10 ** Math.ceil(Math.log10(most) - 1e-6);
  return { scale, bottom: top / 10 ** DECADES, top, low: Math.log2(top) - DECADES * Math.log2(10), by: 1 / (DECADES * Math.log2(10)) };
}

function roundUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((by) => by * power).find((end) => end >= value * (1 - 1e-6)) ?? 10 * power;
}

export function share(value: number, { scale, low, by }: Mapping): number {
  if (!(value > 0)) return 0;
  return Math.min(1, Math.max(0, scale === "log" ? (Math.log2(value) - low) * by : value * by));
}

/** Which of the ramp's colours a value has. */
export const stepOf = (value: number, map: Mapping) => (Number.isNaN(value) ? STEPS : Math.floor(share(value, map) * (STEPS - 1) + 0.5));

/** The page's sequential colours, as RGBA bytes, and that of NaN. */
export function ramp(dark: boolean): Uint8Array<ArrayBuffer> {
  const colour = sequential(1, dark);
  const out = new Uint8Array(4 * (STEPS + 1));
  out.set(NO_NUMBER, 4 * STEPS);
  for (let at = 0; at < STEPS; at += 1) {
    const rgb = (colour(at / (STEPS - 1)).match(/\d+/g) ?? []).map(Number);
    out.set([rgb[0] ?? 0, rgb[1] ?? 0, rgb[2] ?? 0, 255], 4 * at);
  }
  return out;
}

export function legend({ scale, bottom, top }: Mapping): number[] {
  if (scale === "linear") return [0, 0.25, 0.5, 0.75, 1].map((part) => part * top);
  return [...Array(DECADES + 1).keys()].map((decade) => bottom * 10 ** decade);
}
