// The views, by the names and the questions that readers know them by.

import type { View } from "./selection";

export const TABS: Record<View, { label: string; asks: string }> = {
  sentence: { label: "Sentence", asks: "What does this word look at?" },
  steps: { label: "Steps", asks: "How was this number made?" },
  align: { label: "Align", asks: "Which source word made this target word?" },
  heads: { label: "Heads", asks: "What does each head do?" },
  compare: { label: "Compare", asks: "Where do these two differ?" },
};
