// Draws tiles: by WebGL2, or by a 2D canvas where there is none.

import { stepOf, STEPS, type Mapping } from "./colour";
import type { Sprite } from "./scene";
import type { Tile } from "./tiles";

export interface Look {
  map: Mapping;
  /** RGBA, 256 colours. */
  ramp: Uint8Array<ArrayBuffer>;
  /** Behind everything, 0 … 255 each. */
  paper: [number, number, number];
  /** By how much a value of a coarser tile is too large, per level. */
  gain: number;
  /** Device pixels per CSS pixel. */
  ratio: number;
}

export interface Painter {
  readonly by: "webgl2" | "canvas";
  draw(sprites: Sprite[], look: Look): void;
  forget(tile: Tile): void;
  stop(): void;
}

const VERTEX = `#version 300 es
void main() {
  gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
}`;

// A pixel that lies over two cells has both colours, by how much of it each covers: cells of uneven pixels look even.
const FRAGMENT = `#version 300 es
precision highp float;
precision highp int;
precision highp sampler2D;
uniform sampler2D cells;
uniform sampler2D ramp;
uniform vec2 corner;  // the sprite's left and top edge, in pixels from the left and from the top
uniform vec2 first;   // the cell there
uniform float per;    // cells per pixel
uniform float height; // of the canvas
uniform vec4 scale;   // logarithmic?, low, by, gain
out vec4 colour;

vec3 shade(ivec2 at) {
  float v = texelFetch(cells, at, 0).r * scale.w;
  float share = v > 0.0 ? clamp(scale.x > 0.5 ? (log2(v) - scale.y) * scale.z : v * scale.z, 0.0, 1.0) : 0.0;
  return texelFetch(ramp, ivec2(isnan(v) ? 256 : int(share * 255.0 + 0.5), 0), 0).rgb;
}

void main() {
  vec2 pixel = vec2(gl_FragCoord.x - 0.5, height - gl_FragCoord.y - 0.5);
  vec2 from = first + (pixel - corner) * per;
  vec2 to = from + per;
  vec2 last = vec2(textureSize(cells, 0) - 1);
  vec2 a = clamp(floor(from + 1e-3), vec2(0.0), last);
  vec2 b = clamp(floor(to - 1e-3), a, last);
  vec2 part = clamp((b - from) / per, 0.0, 1.0) * step(0.5, b - a);
  vec3 above = mix(shade(ivec2(b.x, a.y)), shade(ivec2(a)), part.x);
  vec3 below = mix(shade(ivec2(b)), shade(ivec2(a.x, b.y)), part.x);
  colour = vec4(mix(below, above, part.y), 1.0);
}`;

function program(gl: WebGL2RenderingContext): WebGLProgram {
  const made = gl.createProgram();
  for (const [type, source] of [
    [gl.VERTEX_SHADER, VERTEX],
    [gl.FRAGMENT_SHADER, FRAGMENT],
  ] as const) {
    const shader = gl.createShader(type)!;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(made, shader);
  }
  gl.linkProgram(made);
  if (!gl.getProgramParameter(made, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(made) ?? "no shader");
  return made;
}

function texture(gl: WebGL2RenderingContext): WebGLTexture {
  const made = gl.createTexture();
  gl.bindTexture(gl.TEXTURE_2D, made);
  for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
  for (const name of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, name, gl.CLAMP_TO_EDGE);
  return made;
}

class GLPainter implements Painter {
  readonly by = "webgl2";
  #at: Record<string, WebGLUniformLocation | null>;
  #ramp: WebGLTexture;
  #shown: Uint8Array | null = null;
  #textures = new Map<string, { made: WebGLTexture; version: number }>();

  constructor(readonly gl: WebGL2RenderingContext) {
    const made = program(gl);
    gl.useProgram(made);
    const names = ["cells", "ramp", "corner", "first", "per", "height", "scale"];
    this.#at = Object.fromEntries(names.map((name) => [name, gl.getUniformLocation(made, name)]));
    gl.uniform1i(this.#at.ramp!, 1);
    gl.activeTexture(gl.TEXTURE1);
    this.#ramp = texture(gl);
    gl.activeTexture(gl.TEXTURE0);
    gl.bindVertexArray(gl.createVertexArray());
    gl.enable(gl.SCISSOR_TEST);
  }

  draw(sprites: Sprite[], { map, ramp, paper, gain, ratio }: Look): void {
    const { gl } = this;
    const { width, height } = gl.canvas;
    gl.viewport(0, 0, width, height);
    gl.scissor(0, 0, width, height);
    gl.clearColor(paper[0] / 255, paper[1] / 255, paper[2] / 255, 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    if (ramp !== this.#shown) this.#setRamp(ramp);
    gl.uniform1f(this.#at.height!, height);
    for (const sprite of sprites) {
      const { tile, left, top, right, bottom, x, y, size } = sprite;
      this.#bind(tile);
      const [x0, y0, x1, y1] = [left, top, right, bottom].map((edge) => Math.round(edge * ratio)) as [number, number, number, number];
      if (x1 <= x0 || y1 <= y0) continue;
      gl.scissor(x0, height - y1, x1 - x0, y1 - y0);
      gl.uniform2f(this.#at.corner!, left * ratio, top * ratio);
      gl.uniform2f(this.#at.first!, x, y);
      gl.uniform1f(this.#at.per!, 1 / (size * ratio));
      gl.uniform4f(this.#at.scale!, map.scale === "log" ? 1 : 0, map.low, map.by, gain ** sprite.coarser);
      gl.drawArrays(gl.TRIANGLES, 0, 3);
    }
  }

  #setRamp(ramp: Uint8Array<ArrayBuffer>): void {
    const { gl } = this;
    this.#shown = ramp;
    gl.activeTexture(gl.TEXTURE1);
    gl.bindTexture(gl.TEXTURE_2D, this.#ramp);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA8, STEPS + 1, 1, 0, gl.RGBA, gl.UNSIGNED_BYTE, ramp);
    gl.activeTexture(gl.TEXTURE0);
  }

  /** 32-bit floats are read one by one (texelFetch), so that no extension for filtering them is needed. */
  #bind(tile: Tile): void {
    const { gl } = this;
    const kept = this.#textures.get(tile.name);
    const made = kept?.made ?? texture(gl);
    gl.bindTexture(gl.TEXTURE_2D, made);
    if (kept?.version === tile.version) return;
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.R32F, tile.width, tile.height, 0, gl.RED, gl.FLOAT, tile.values);
    this.#textures.set(tile.name, { made, version: tile.version });
  }

  forget(tile: Tile): void {
    const kept = this.#textures.get(tile.name);
    if (kept) this.gl.deleteTexture(kept.made);
    this.#textures.delete(tile.name);
  }

  stop(): void {
    for (const { made } of this.#textures.values()) this.gl.deleteTexture(made);
    this.#textures.clear();
  }
}

class FlatPainter implements Painter {
  readonly by = "canvas";
  #images = new Map<string, { image: HTMLCanvasElement; made: string }>();

  constructor(readonly context: CanvasRenderingContext2D) {}

  draw(sprites: Sprite[], look: Look): void {
    const { context } = this;
    const { ratio, paper } = look;
    context.fillStyle = `rgb(${paper.join(" ")})`;
    context.fillRect(0, 0, context.canvas.width, context.canvas.height);
    context.imageSmoothingEnabled = false;
    for (const { tile, left, top, right, bottom, x, y, size, coarser } of sprites) {
      const image = this.#image(tile, look, coarser);
      const [x0, y0, x1, y1] = [left, top, right, bottom].map((edge) => Math.round(edge * ratio)) as [number, number, number, number];
      context.drawImage(image, x, y, (right - left) / size, (bottom - top) / size, x0, y0, x1 - x0, y1 - y0);
    }
  }

  #image(tile: Tile, { map, ramp, gain }: Look, coarser: number): HTMLCanvasElement {
    const by = gain ** coarser;
    const made = [tile.version, map.scale, map.top, by, ramp[0]].join();
    const kept = this.#images.get(tile.name);
    if (kept?.made === made) return kept.image;
    const image = kept?.image ?? document.createElement("canvas");
    [image.width, image.height] = [tile.width, tile.height];
    const data = new ImageData(tile.width, tile.height);
    tile.values.forEach((value, at) => {
      const step = 4 * stepOf(value * by, map);
      data.data.set(ramp.subarray(step, step + 4), 4 * at);
    });
    image.getContext("2d")!.putImageData(data, 0, 0);
    this.#images.set(tile.name, { image, made });
    return image;
  }

  forget(tile: Tile): void {
    this.#images.delete(tile.name);
  }

  stop(): void {
    this.#images.clear();
  }
}

/** A painter for a canvas that nothing was drawn on yet. */
export function painterFor(canvas: HTMLCanvasElement): Painter {
  const gl = canvas.getContext("webgl2", { alpha: false, antialias: false, depth: false, powerPreference: "low-power" });
  return gl ? new GLPainter(gl) : new FlatPainter(canvas.getContext("2d", { alpha: false })!);
}
