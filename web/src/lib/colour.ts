// Colours of numbers. Lightness alone tells them apart, so that every eye and a grey print can; signs have a hatch too.

import { interpolateRgb, piecewise } from "d3-interpolate";
import { scaleDiverging, scaleSequential } from "d3-scale";

const SEQUENTIAL = {
  light: ["#f6f8f9", "#c3dcea", "#79b0d3", "#3474b0", "#123c6c"],
  dark: ["#20272e", "#234b68", "#367fa6", "#78bcc4", "#f1efb0"],
};
const DIVERGING = {
  light: ["#0f4f8f", "#7fb0d8", "#f6f6f4", "#e9ab78", "#9a4107"],
  dark: ["#8ccbfa", "#3b7099", "#22292f", "#8f5f35", "#f7b67c"],
};

const mode = (dark: boolean) => (dark ? "dark" : "light");

/** From nothing to `top`. */
export function sequential(top: number, dark: boolean): (value: number) => string {
  return scaleSequential(piecewise(interpolateRgb, SEQUENTIAL[mode(dark)])).domain([0, top || 1]).clamp(true);
}

/** From nothing to `top` by the square root, so that the spread-out and the narrow can both be seen; half way is a quarter. */
export function rooted(top: number, dark: boolean): (value: number) => string {
  const colour = sequential(1, dark);
  return (value) => colour(Math.sqrt(Math.max(0, value) / (top || 1)));
}

/** From −`top` (blue) over 0 to `top` (orange). */
export function diverging(top: number, dark: boolean): (value: number) => string {
  return scaleDiverging(piecewise(interpolateRgb, DIVERGING[mode(dark)])).domain([-(top || 1), 0, top || 1]).clamp(true);
}

/** Black or white, whichever can be read on a colour `rgb(r, g, b)`. */
export function inkOn(colour: string): string {
  const [r = 0, g = 0, b = 0] = (colour.match(/\d+/g) ?? []).map((part) => {
    const share = Number(part) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

export function largest(values: Iterable<number | null>): number {
  let top = 0;
  for (const value of values) if (value !== null && Number.isFinite(value)) top = Math.max(top, Math.abs(value));
  return top;
}
