import { svelte } from "@sveltejs/vite-plugin-svelte";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// Three builds, all into the Python package: the page that the service serves, and with `--mode static` and
// `--mode widget` a script and a style sheet each. EXPLORER_OUT builds them elsewhere, for comparison.
declare const process: { env: Record<string, string | undefined> };
const OUT = process.env.EXPLORER_OUT ?? "../regard/explorer";

/** Without what would end, or change the meaning of, a script element that holds it. In strings these mean the same. */
function inlinable(): Plugin {
  return {
    name: "inlinable",
    generateBundle(_, files) {
      for (const file of Object.values(files)) {
        if (file.type === "chunk") file.code = file.code.replace(/<(?=\/?script|!--)/gi, "\\x3c");
      }
    },
  };
}

const FORMATS = {
  static: { input: "src/static.ts", format: "iife", name: "app", plugins: [inlinable()] },
  widget: { input: "src/widget.ts", format: "es", name: "widget", plugins: [] },
} as const;

/** What needs a service with models of its task, and in a static page, which holds one sentence, what is for 100,000 tokens. */
const LEFT_OUT: Record<string, string[]> = { static: ["Long", "Summary", "Answer"], widget: ["Summary", "Answer"] };

export default defineConfig(({ mode }) => {
  const one = mode === "static" || mode === "widget" ? FORMATS[mode] : null;
  return {
    plugins: [svelte(), ...(one?.plugins ?? [])],
    base: "./",
    resolve: { alias: LEFT_OUT[mode]?.map((view) => ({ find: `./views/${view}.svelte`, replacement: "./views/None.svelte" })) ?? [] },
    build: {
      outDir: `${OUT}/${one ? mode : "page"}`,
      emptyOutDir: true,
      target: "es2022",
      assetsInlineLimit: 0,
      modulePreload: false,
      reportCompressedSize: true,
      ...(one && {
        cssCodeSplit: false,
        rolldownOptions: {
          input: one.input,
          preserveEntrySignatures: "strict" as const,
          output: { format: one.format, entryFileNames: `${one.name}.js`, assetFileNames: `${one.name}.[ext]` },
        },
      }),
    },
    server: { proxy: { "/api": "http://127.0.0.1:8765" } },
    test: { include: ["tests/**/*.test.ts"], environment: "node" },
  };
});
