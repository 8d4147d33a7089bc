import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// The page is built into the Python package, which serves it; `--outDir` builds it elsewhere, for comparison.
export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: "../regard/explorer/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: true,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8765" } },
  test: { include: ["tests/**/*.test.ts"], environment: "node" },
});
