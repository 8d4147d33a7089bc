// The explorer as an anywidget: a part of a notebook, answered by its kernel.

import { mount, unmount } from "svelte";
import "./app.css";
import App from "./App.svelte";
import { memoryAddress } from "./lib/address";
import type { Usual } from "./lib/theme.svelte";
import { Messages, type WidgetModel, widgetSource } from "./lib/widget";

/** As the notebook is: each says it in a way of its own. What a reader chooses lasts as long as the widget. */
function notebookTheme(): Usual {
  const told = [
    () => document.body.dataset.jpThemeLight && document.body.dataset.jpThemeLight === "false",
    () => document.body.dataset.vscodeThemeKind?.includes("dark"),
    () => document.documentElement.getAttribute("theme") === "dark" || undefined,
    () => document.documentElement.classList.contains("dark") || document.body.classList.contains("dark") || undefined,
  ];
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  return {
    dark() {
      const known = told.map((ask) => ask()).find((answer) => typeof answer === "boolean");
      return typeof known === "boolean" ? known : system.matches;
    },
    kept: () => null,
    keep() {},
  };
}

function render({ model, el }: { model: WidgetModel; el: HTMLElement }): () => void {
  const root = document.createElement("div");
  root.className = "regard";
  root.dataset.lmSuppressShortcuts = "true"; // JupyterLab's keys are not for here
  el.append(root);
  const messages = new Messages(model);
  const source = widgetSource(model, messages);
  const address = memoryAddress(String(model.get("start") ?? ""));
  const app = mount(App, { target: root, props: { surroundings: { source, address, root, whole: false, theme: notebookTheme() } } });
  return () => {
    void unmount(app);
    messages.close();
    root.remove();
  };
}

export default { render };
