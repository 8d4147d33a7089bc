/** The root font's size in pixels: what is measured in words grows with it. */
export const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize) || 16;
