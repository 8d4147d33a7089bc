// Gold links as people write them, and the alignment error rate (Och and Ney 2003).

import type { Link } from "./types";

export interface Gold {
  sure: Set<string>;
  /** The sure ones are among them. */
  possible: Set<string>;
  /** What could not be read; "" when all could. */
  problem: string;
}

export const linkKey = (source: number, target: number) => `${source}-${target}`;

/** `0-0 1-2`, source first; `1p2`, `1?2` and `1-2p` are possible links only. With sizes, links must be inside them. */
export function parseLinks(text: string, sources = Infinity, targets = Infinity): Gold {
  const gold: Gold = { sure: new Set(), possible: new Set(), problem: "" };
  for (const entry of text.split(/[\s,]+/).filter(Boolean)) {
    const match = /^(\d{1,6})([-p?])(\d{1,6})(p?)$/.exec(entry);
    if (!match) {
      gold.problem ||= `expected links such as 0-1 (sure) or 0p1 (possible), got “${entry}”`;
      continue;
    }
    const [source, target] = [Number(match[1]), Number(match[3])];
    if (source >= sources || target >= targets) {
      gold.problem ||= `“${entry}” names a word that is not there: ${sources} source and ${targets} target words, from 0`;
      continue;
    }
    gold.possible.add(linkKey(source, target));
    if (match[2] === "-" && !match[4]) gold.sure.add(linkKey(source, target));
  }
  return gold;
}

/** Links as regard.align.parse reads them. */
export function formatLinks(gold: Gold): string {
  const all = [...gold.possible].map((key) => key.split("-").map(Number) as Link);
  all.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return all.map(([s, t]) => `${s}${gold.sure.has(linkKey(s, t)) ? "-" : "p"}${t}`).join(" ");
}

/** 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|); 0 is best. */
export function errorRate(links: Link[], gold: Gold): number {
  const found = new Set(links.map(([source, target]) => linkKey(source, target)));
  const inside = (keys: Set<string>) => [...found].filter((key) => keys.has(key)).length;
  const size = found.size + gold.sure.size;
  return size ? 1 - (inside(gold.sure) + inside(gold.possible)) / size : 0;
}
