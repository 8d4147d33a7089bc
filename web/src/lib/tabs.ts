// The views, by the names and the questions that readers know them by.

import type { View } from "./selection";
import type { Model, Models, Named, Task } from "./types";

export const TABS: Record<View, { label: string; asks: string }> = {
  sentence: { label: "Sentence", asks: "What does this word attend to?" },
  steps: { label: "Steps", asks: "How is this number computed?" },
  align: { label: "Align", asks: "Which source word produced this target word?" },
  heads: { label: "Heads", asks: "What does each head do?" },
  compare: { label: "Compare", asks: "Where do these two differ?" },
  long: { label: "Long", asks: "Where does attention go in a long text?" },
  summary: { label: "Summary", asks: "Where does each word of the summary come from?" },
  answer: { label: "Answer", asks: "Where in the text is the answer?" },
};

/** The task whose models a view shows; null is none: Long has traces of its own. */
export const TASKS: Record<View, Task | null> = {
  sentence: "translation",
  steps: "translation",
  align: "translation",
  heads: "translation",
  compare: "translation",
  long: null,
  summary: "summarization",
  answer: "qa",
};

/** What Long shows where no trace was given: the sentence of the other views. Also among traces, by this name. */
export const SENTENCE = "sentence";

/** Whether a view is about the sentence; Long is, where there is nothing longer or it is chosen. */
export const readsSentence = (view: View, trace: string, given: readonly Named[] | null): boolean =>
  TASKS[view] === "translation" || (view === "long" && (trace === SENTENCE || (trace === "" && given?.length === 0)));

/** The models of a task; while they are not known, none. */
export const modelsOf = (known: Models | null, task: Task): Model[] => known?.models.filter((one) => one.task === task) ?? [];

/** Which one to ask for; "" is the service's default. One that is chosen for another task is not meant. */
export const modelFor = (known: Models | null, wanted: string, task: Task): string =>
  known?.models.some((one) => one.name === wanted && one.task !== task) ? "" : wanted;

/**
 * The views that there are models for; Long for traces, or beside translations. Until that is known, those of translation
 * and the one that is asked for.
 */
export function viewsOf(can: readonly View[], wanted: View, known: Models | null, traces: readonly Named[]): View[] {
  const tasks = new Set(known?.models.map((one) => one.task) ?? ["translation"]);
  const long = tasks.has("translation") || tasks.size === 0 || traces.length > 0;
  return can.filter((view) => {
    const task = TASKS[view];
    return task === null ? long : tasks.has(task) || (known === null && view === wanted);
  });
}
