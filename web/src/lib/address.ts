// Where a page keeps its selection: in the document's address, or only in memory.

export interface Address {
  /** What can be read in it can be shared. */
  readonly shared: boolean;
  read(): string;
  write(hash: string, replace: boolean): void;
  /** Until `closing`. */
  listen(changed: () => void, closing: AbortSignal): void;
}

/** The hash of the document. Where the browser keeps no history for it (a frame without an address), memory. */
export function hashAddress(start = ""): Address {
  const own = memoryAddress(location.hash || start);
  return {
    ...own,
    shared: true,
    write(hash, replace) {
      own.write(hash, replace);
      if (hash === location.hash) return;
      try {
        if (replace) history.replaceState(null, "", hash);
        else history.pushState(null, "", hash);
      } catch {
        // refused: the page works, its address does not follow
      }
    },
    listen(changed, signal) {
      const read = () => {
        own.write(location.hash || start, true);
        changed();
      };
      window.addEventListener("popstate", read, { signal });
      window.addEventListener("hashchange", read, { signal });
    },
  };
}

export function memoryAddress(start = ""): Address {
  let now = start;
  return {
    shared: false,
    read: () => now,
    write(hash) {
      now = hash;
    },
    listen() {},
  };
}
