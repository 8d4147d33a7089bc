// The page of a static export: everything it shows is in the document's own element, see FORMAT.md.

import { mount } from "svelte";
import "./app.css";
import App from "./App.svelte";
import { hashAddress } from "./lib/address";
import type { Document } from "./lib/document";
import { embeddedSource } from "./lib/embedded";
import { systemTheme } from "./lib/theme.svelte";

const root = document.documentElement;
const target = document.getElementById("app")!;
root.classList.add("regard");
try {
  const data = JSON.parse(document.getElementById("regard-data")?.textContent ?? "") as Document;
  const source = embeddedSource(data);
  const surroundings = { source, address: hashAddress(data.start ?? ""), root, whole: true, theme: systemTheme() };
  mount(App, { target, props: { surroundings } });
} catch (error) {
  target.textContent = `This page could not be drawn: ${error instanceof Error ? error.message : String(error)}`;
}
