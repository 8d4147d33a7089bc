import { mount } from "svelte";
import "./app.css";
import App from "./App.svelte";
import { hashAddress } from "./lib/address";
import { httpSource } from "./lib/api";
import { systemTheme } from "./lib/theme.svelte";

const root = document.documentElement;
root.classList.add("regard");
const surroundings = { source: httpSource(), address: hashAddress(), root, whole: true, theme: systemTheme() };
mount(App, { target: document.getElementById("app")!, props: { surroundings } });
