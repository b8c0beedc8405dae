// A served page of a run that goes on: asks for newer numbers, and replaces only those parts that changed.
"use strict";

(() => {
  const EVERY_MS = 2000;
  const sources = new WeakMap(); // what the server said of an element, which scripts have changed since
  const main = document.getElementById("content");
  let version;

  /** Return a name for each child, by which its successor is found: its id, or its kind and number. */
  function named(parent) {
    const counts = {}, found = new Map();
    for (const child of parent.children) {
      const kind = `${child.tagName} ${child.className}`;
      counts[kind] = (counts[kind] ?? 0) + 1;
      found.set(child.id || `${kind} ${counts[kind]}`, child);
    }
    return found;
  }

  /** Remember what the server said of a page's parts. */
  function remember(parent) {
    for (const child of parent.children) {
      sources.set(child, child.outerHTML);
      if (child.matches(".charts")) remember(child);
    }
  }

  /** Make the children of one element those of another; what did not change stays as it is, a video goes on playing. */
  function follow(parent, wanted) {
    const before = named(parent);
    let place = parent.firstElementChild;
    for (const [name, child] of named(wanted)) {
      const old = before.get(name);
      before.delete(name);
      let stays = old;
      if (!old || sources.get(old) !== sources.get(child)) {
        if (old?.matches(".charts") && child.matches(".charts")) {
          sources.set(old, sources.get(child));
          follow(old, child);
        } else {
          stays = child;
        }
      }
      if (stays === child) {
        const open = old ? [...old.querySelectorAll("details")].map((one) => one.open) : [];
        if (old && old === place) place = old.nextElementSibling;
        old?.remove();
        parent.insertBefore(child, place);
        child.querySelectorAll("details").forEach((one, number) => (one.open = open[number] ?? false));
        report.ready(child);
      } else if (stays === place) {
        place = place.nextElementSibling;
      } else {
        parent.insertBefore(stays, place);
      }
    }
    for (const gone of before.values()) gone.remove();
  }

  async function ask() {
    try {
      const state = await (await fetch("state.json")).json();
      if (state.version !== version) {
        const text = await (await fetch("index.html")).text();
        const wanted = new DOMParser().parseFromString(text, "text/html").getElementById("content");
        remember(wanted);
        follow(main, wanted);
      }
      version = state.version;
      document.body.dataset.version = version;
    } catch {
      // The server is gone, or the machine slept: asked again.
    }
    setTimeout(ask, EVERY_MS);
  }

  remember(main); // before other scripts change it
  ask();
})();
