// A part of the page as a picture of its own: every box, text and curve in it, with the colours it has on the screen.

const SVG = "http://www.w3.org/2000/svg";

const MARGIN = 16;
const TITLE = 34;

/** An SVG document of an element under a title. Attributes only, no style sheet, so that every program can read it. */
export function toSVG(root: HTMLElement, title: string): string {
  const inner = root.getBoundingClientRect();
  const frame = new DOMRect(inner.x - MARGIN, inner.y - MARGIN - TITLE, inner.width, inner.height);
  const width = Math.ceil(Math.max(inner.width, root.scrollWidth)) + 2 * MARGIN;
  const height = Math.ceil(inner.height) + 2 * MARGIN + TITLE;
  const out = element("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  const style = getComputedStyle(root);
  out.append(element("rect", { width, height, fill: style.backgroundColor }));
  const font = { "font-family": style.fontFamily.replaceAll('"', "'"), "font-size": 16, "font-weight": 600 };
  const heading = element("text", { x: MARGIN, y: MARGIN + 14, fill: style.color, ...font });
  heading.textContent = title;
  out.append(heading);
  draw(root, out, frame);
  return new XMLSerializer().serializeToString(out);
}

function draw(node: Element, out: SVGElement, frame: DOMRect): void {
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden" || node.classList.contains("sr")) return;
  if (node instanceof SVGElement) {
    if (node instanceof SVGSVGElement) out.append(curves(node, frame));
    return;
  }
  const box = place(node.getBoundingClientRect(), frame);
  drawBox(node, style, box, out);
  if (node instanceof HTMLCanvasElement) out.append(picture(node, style, box));
  for (const child of node.childNodes) {
    if (child instanceof Element) draw(child, out, frame);
    else if (child.nodeType === Node.TEXT_NODE && child.textContent?.trim()) drawText(child as Text, style, out, frame);
  }
}

/** A canvas as it is, its cells as sharp as on the screen. */
function picture(canvas: HTMLCanvasElement, style: CSSStyleDeclaration, box: Box): SVGElement {
  const shown = { preserveAspectRatio: "none", "image-rendering": style.imageRendering, opacity: style.opacity };
  return element("image", { ...box, ...shown, href: canvas.toDataURL() });
}

function drawBox(node: Element, style: CSSStyleDeclaration, box: Box, out: SVGElement): void {
  const fill = style.backgroundColor;
  const bordered = style.borderTopStyle !== "none" && parseFloat(style.borderTopWidth) > 0;
  if (bordered && parseFloat(style.borderBottomWidth) === 0) {
    const rule = { x1: box.x, x2: box.x + box.width, y1: box.y, y2: box.y };
    out.append(element("line", { ...rule, stroke: style.borderTopColor, "stroke-width": style.borderTopWidth }));
    return;
  }
  if (isClear(fill) && !bordered) return;
  const rx = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
  const attributes: Attributes = { ...box, rx, fill: isClear(fill) ? "none" : fill };
  if (bordered) {
    attributes.stroke = style.borderTopColor;
    attributes["stroke-width"] = parseFloat(style.borderTopWidth);
    if (style.borderTopStyle === "dashed") attributes["stroke-dasharray"] = "3 2";
  }
  out.append(element("rect", attributes));
  if (node.classList.contains("negative")) {
    const y = box.y + box.height / 2;
    const line = { x1: box.x + 2, x2: box.x + box.width - 2, y1: y, y2: y, stroke: style.color, opacity: 0.45 };
    if (parseFloat(style.fontSize) === 0) out.append(element("line", line));
  }
  drawMarks(node.classList, style, box, out);
}

/** What a style sheet draws on cells: the dot of a link, the frame of a gold one. */
function drawMarks(marks: DOMTokenList, style: CSSStyleDeclaration, box: Box, out: SVGElement): void {
  if (marks.contains("link")) {
    out.append(element("circle", { cx: box.x + box.width - 8, cy: box.y + 8, r: 3, fill: style.color }));
  }
  if (!marks.contains("sure") && !marks.contains("possible")) return;
  const frame = element("rect", {
    x: box.x + 1.25,
    y: box.y + 1.25,
    width: box.width - 2.5,
    height: box.height - 2.5,
    fill: "none",
    stroke: style.getPropertyValue("--key"),
    "stroke-width": 2.5,
  });
  if (marks.contains("possible")) frame.setAttribute("stroke-dasharray", "5 3");
  out.append(frame);
}

function drawText(text: Text, style: CSSStyleDeclaration, out: SVGElement, frame: DOMRect): void {
  const range = document.createRange();
  range.selectNodeContents(text);
  const rects = [...range.getClientRects()];
  const [first] = rects;
  if (!first || !first.width) return;
  const lines = rects.length === 1 ? [text.data.trim()] : wrapped(text, rects.length);
  const upright = style.writingMode.startsWith("horizontal");
  rects.forEach((rect, index) => {
    const box = place(rect, frame);
    const [x, y] = [round(box.x + box.width / 2), round(box.y + box.height / 2)];
    const label = element("text", {
      x,
      y,
      "text-anchor": "middle",
      "dominant-baseline": "central",
      "font-family": style.fontFamily.replaceAll('"', "'"),
      "font-size": style.fontSize,
      "font-weight": style.fontWeight,
      fill: style.color,
      ...(style.textDecorationLine.includes("underline") && { "text-decoration": "underline" }),
    });
    if (!upright) label.setAttribute("transform", `rotate(-90 ${x} ${y})`);
    label.textContent = lines[index] ?? "";
    out.append(label);
  });
}

/** The lines of a text that the browser broke, by where each character stands. */
function wrapped(text: Text, count: number): string[] {
  const lines: string[] = [];
  const range = document.createRange();
  let bottom = -Infinity;
  let line = "";
  for (let at = 0; at < text.length; at += 1) {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    const rect = range.getBoundingClientRect();
    if (rect.top >= bottom - 1 && rect.height) {
      lines.push(line);
      line = "";
      bottom = rect.bottom;
    }
    line += text.data.charAt(at);
  }
  lines.push(line);
  lines.shift();
  return lines.slice(0, count).map((line) => line.trim());
}

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity", "stroke-opacity"];

/** A copy of an inline SVG at its place, style sheets turned into attributes. */
function curves(source: SVGSVGElement, frame: DOMRect): SVGElement {
  const box = place(source.getBoundingClientRect(), frame);
  const group = element("g", { transform: `translate(${box.x} ${box.y})` });
  for (const node of source.querySelectorAll<SVGElement>("path, line, rect, circle, text")) {
    const copy = node.cloneNode(true) as SVGElement;
    const style = getComputedStyle(node);
    for (const name of [...copy.getAttributeNames()]) {
      if (name === "class" || name === "style" || name.startsWith("data-")) copy.removeAttribute(name);
    }
    for (const name of DRAWN) copy.setAttribute(name, style.getPropertyValue(name));
    if (node instanceof SVGTextElement) {
      for (const name of ["font-size", "font-weight", "text-anchor"]) copy.setAttribute(name, style.getPropertyValue(name));
      copy.setAttribute("font-family", style.fontFamily.replaceAll('"', "'"));
    }
    group.append(copy);
  }
  return group;
}

type Attributes = Record<string, string | number>;
interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

function element(name: string, attributes: Attributes): SVGElement {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (key !== "xmlns") made.setAttribute(key, String(value));
  return made;
}

const round = (value: number) => Math.round(value * 100) / 100;
const place = (rect: DOMRect, frame: DOMRect) => ({
  x: round(rect.left - frame.left),
  y: round(rect.top - frame.top),
  width: round(rect.width),
  height: round(rect.height),
});
const isClear = (colour: string) => colour === "transparent" || /^rgba\(.*, 0\)$/.test(colour);

/** A PNG of an SVG document, at twice the size. */
export async function toPNG(svg: string): Promise<Blob> {
  const address = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    await new Promise((done, failed) => {
      image.onload = done;
      image.onerror = () => failed(new Error("the picture could not be drawn"));
      image.src = address;
    });
    const scale = Math.min(2, 8000 / Math.max(image.width, image.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.ceil(image.width * scale);
    canvas.height = Math.ceil(image.height * scale);
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done, failed) =>
      canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("the picture is too large"))), "image/png"),
    );
  } finally {
    URL.revokeObjectURL(address);
  }
}

export function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
