// The gallery: cards of clips, facets, search, groups of duplicates, one clip at a permalink. All text is set as text.
"use strict";

(() => {
  const PAGE = 48; // cards added at a time
  const STRIP_MS = 160; // a frame of a strip
  const MOST_WORDS = 200; // characters that the server searches for
  const form = document.getElementById("facets");
  const cards = document.getElementById("cards");
  const dialog = document.getElementById("clip");
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let about, columns, copies; // of data/rows.js; rows of copies by the row they repeat
  let plays = false; // whether the server plays clips, and searches captions
  let searches = false;
  let matching = [];
  let shown = 0;
  let asked = 0; // number of the newest question, so that older answers are dropped
  let sentinel; // sees the end of the cards
  let listHash = ""; // facets to which a closed clip leads back
  let written = null; // address that the facets gave, until the page follows it

  const hexOf = (text) => Array.from(new TextEncoder().encode(text), (one) => one.toString(16).padStart(2, "0")).join("");
  const numbered = (name, place) => `${name}-${String(place + 1).padStart(4, "0")}`;
  const ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array };

  /** Return the text of a row: its chunk loaded, its source named. */
  async function textOf(row) {
    const [chunk, source] = await Promise.all([
      data.load(numbered("clips", Math.floor(row / about.chunkRows))),
      sourceOf(columns.source[row]),
    ]);
    const at = row % about.chunkRows;
    const text = { row, source };
    for (const name of Object.keys(chunk)) text[name] = Array.isArray(chunk[name]) ? chunk[name][at] : chunk[name];
    [text.state, text.stage] = about.kinds[columns.kind[row]];
    return text;
  }

  async function sourceOf(number) {
    const chunk = await data.load(numbered("sources", Math.floor(number / about.chunkSources)));
    return chunk.sources[number % about.chunkSources];
  }

  /** Make an element with properties, attributes and children; strings become text. */
  function make(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  const seconds = (value) => `${value.toFixed(2)} s`;
  const base = (path) => path.slice(path.lastIndexOf("/") + 1);
  const span = (text) => (text.start === null ? "" : `${text.start.toFixed(2)} to ${seconds(text.end)}`);
  const shape = (text) => (text.frames ? `${text.frames} frames, ${text.width} x ${text.height}, ${text.fps} fps` : "");

  /** Return the strip of a row, standing at its middle frame, running while it is pointed at or has the focus. */
  function strip(row, runsWith) {
    const picture = about.pictures[row];
    if (!picture) return make("div", { class: "strip none" });
    const [name, frames, width, height] = picture;
    const image = make("img", { src: `pictures/${name}.jpg`, alt: "", loading: "lazy", decoding: "async" });
    const window = make("div", { class: "frame" }, image);
    window.style.aspectRatio = `${width} / ${height}`;
    image.style.width = `${100 * frames}%`;
    const show = (frame) => (image.style.transform = `translateX(${(-100 * frame) / frames}%)`);
    const middle = Math.floor(frames / 2);
    show(middle);
    let timer = 0;
    const run = () => {
      if (still || timer || frames < 2) return;
      let frame = 0;
      show(0);
      timer = setInterval(() => show((frame = (frame + 1) % frames)), STRIP_MS);
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      show(middle);
    };
    for (const event of ["pointerenter", "focus"]) runsWith.addEventListener(event, run);
    for (const event of ["pointerleave", "blur"]) runsWith.addEventListener(event, stop);
    return make("div", { class: "strip" }, window);
  }

  function card(row) {
    const made = make("a", { class: "card", "data-row": row });
    const body = make("div", { class: "text" });
    made.append(strip(row, made), body);
    textOf(row).then((text) => {
      if (text.key) made.href = `#${encodeURIComponent(text.key)}`;
      const none = made.querySelector(".strip.none");
      if (none && text.state !== "kept" && row < about.chosen) none.textContent = text.key === null ? "never cut, no picture" : "not in the ledger, no picture";
      const count = copies.get(row)?.length ?? 0;
      const caption = text.state === "kept" ? text.caption || "no caption" : text.reason;
      body.append(
        make("p", { class: "caption" }, caption),
        make("p", { class: "soft" }, `${base(text.source) || "taken down"}${text.start === null ? "" : `, ${span(text)}`}`),
        make("p", { class: "soft" }, make("span", { class: `state ${text.state}` }, text.state === "kept" ? "kept" : `${text.state}: ${text.stage}`), count ? `, ${count} left out for it` : ""),
        ...(text.frames ? [make("p", { class: "soft" }, shape(text))] : []),
      );
      made.setAttribute("aria-label", `${text.state}: ${caption.slice(0, 200)}`);
      made.dataset.ready = "yes";
    });
    return made;
  }

  /** Add the next cards, or groups, of what matches. */
  function more() {
    const next = matching.slice(shown, shown + PAGE);
    shown += next.length;
    const grouped = form.elements.groups.checked;
    cards.classList.toggle("grouped", grouped);
    for (const row of next) {
      cards.append(grouped ? make("section", { class: "group" }, card(row), ...(copies.get(row) ?? []).slice(0, 12).map(card)) : card(row));
    }
    const end = document.getElementById("more");
    end.textContent = shown < matching.length ? `${(matching.length - shown).toLocaleString("en")} more below` : "";
    // Observed anew, it tells again whether the end is still near.
    sentinel.unobserve(end);
    if (shown < matching.length) sentinel.observe(end);
  }

  /** Return the value of a facet as a number, or null. */
  const numberOf = (name) => (form.elements[name].value === "" ? null : Number(form.elements[name].value));

  /** Find what the facets ask for, and show the first of it. */
  async function find() {
    const question = ++asked;
    const wanted = form.elements;
    const chosen = new Uint8Array(about.count).fill(1);
    const only = (test) => {
      for (let row = 0; row < about.count; row++) if (chosen[row] && !test(row)) chosen[row] = 0;
    };
    const state = wanted.state.value, stage = wanted.stage.value;
    if (wanted.groups.checked) only((row) => copies.has(row));
    if (state || stage) {
      const fits = about.kinds.map(([one, other]) => (!state || one === state) && (!stage || other === stage));
      only((row) => fits[columns.kind[row]]);
    }
    if (wanted.bucket.value) {
      const bucket = wanted.bucket.value === "none" ? 0 : about.buckets.indexOf(wanted.bucket.value) + 1;
      only((row) => columns.bucket[row] === bucket && about.kinds[columns.kind[row]][0] === "kept");
    }
    const least = numberOf("chars_from"), most = numberOf("chars_to");
    if (least !== null || most !== null) {
      only((row) => about.kinds[columns.kind[row]][0] === "kept" && columns.length[row] >= (least ?? 0) && columns.length[row] <= (most ?? Infinity));
    }
    if (wanted.score.value && (numberOf("score_from") !== null || numberOf("score_to") !== null)) {
      const values = await scoreValues(wanted.score.value);
      const from = numberOf("score_from") ?? -Infinity, to = numberOf("score_to") ?? Infinity;
      only((row) => columns.scored[row] && values[columns.scored[row] - 1] >= from && values[columns.scored[row] - 1] <= to);
    }
    if (wanted.map.value || wanted.place.value) {
      const inside = await onMap(wanted.map.value, wanted.place.value);
      only((row) => inside[row]);
    }
    const source = wanted.source.value;
    if (source) {
      const fits = new Uint8Array(about.sources);
      let exact = -1;
      for (let start = 0; start < about.sources; start += about.chunkSources) {
        const chunk = await data.load(numbered("sources", start / about.chunkSources));
        chunk.sources.forEach((name, place) => {
          if (name === source) exact = start + place;
          fits[start + place] = name.toLowerCase().includes(source.toLowerCase()) ? 1 : 0;
        });
      }
      only((row) => (exact >= 0 ? columns.source[row] === exact : fits[columns.source[row]]));
    }
    const words = wanted.q.value.trim().toLowerCase();
    if (words && searches) {
      const asking = Array.from(wanted.q.value.trim()).slice(0, MOST_WORDS).join(""); // no half of a surrogate pair
      const hits = bytesOf((await data.once(`search-${hexOf(asking)}`)).hits);
      only((row) => (hits[row >> 3] >> (row & 7)) & 1);
    } else if (words) {
      for (let start = 0; start < about.count; start += about.chunkRows) {
        const place = start / about.chunkRows;
        const end = Math.min(about.count, start + about.chunkRows);
        if (!chosen.subarray(start, end).includes(1)) continue;
        const chunk = await data.load(numbered("clips", place));
        if (question !== asked) return;
        say(`searching: ${start.toLocaleString("en")} of ${about.count.toLocaleString("en")}`);
        for (let row = start; row < end; row++) {
          const caption = Array.isArray(chunk.caption) ? chunk.caption[row - start] : chunk.caption;
          if (chosen[row] && !caption.toLowerCase().includes(words)) chosen[row] = 0;
        }
      }
    }
    let found = [];
    for (let row = 0; row < about.count; row++) if (chosen[row]) found.push(row);
    const sort = wanted.sort.value;
    if (sort === "long" || sort === "short") {
      const sign = sort === "long" ? -1 : 1;
      found.sort((a, b) => sign * (columns.length[a] - columns.length[b]) || a - b);
    } else if (sort === "outlier") {
      const far = await outlierScores();
      found = found.filter((row) => !Number.isNaN(far[row])).sort((a, b) => far[b] - far[a] || a - b);
    } else if (sort) {
      const [, name, way] = /^(.*):(up|down)$/.exec(sort) ?? [];
      const values = await scoreValues(name);
      const value = (row) => (columns.scored[row] ? values[columns.scored[row] - 1] : NaN);
      const sign = way === "up" ? 1 : -1;
      found = found.filter((row) => !Number.isNaN(value(row))).sort((a, b) => sign * (value(a) - value(b)) || a - b);
    }
    if (question !== asked) return;
    matching = found;
    shown = 0;
    cards.replaceChildren();
    const what = form.elements.groups.checked ? "groups of duplicates" : "clips and spans";
    const short = about.mostChars ? `; captions are cut after ${about.mostChars} characters, here${searches ? "" : " and in searches"}` : "";
    say(`${found.length.toLocaleString("en")} of ${about.count.toLocaleString("en")} ${what}${short}`);
    more();
    document.body.dataset.answered = `${location.hash.slice(1)} ${found.length}`;
  }

  const say = (text) => (document.getElementById("found").textContent = text);

  /** Return 1 for each row that is on the map, within a rectangle "x,x,y,y", and of a cluster or far from all others. */
  async function onMap(rectangle, place) {
    const inside = new Uint8Array(about.count);
    if (!about.clusters.length) return inside;
    const content = await data.load("map");
    const map = mapColumns(content);
    const everywhere = [-Infinity, Infinity, -Infinity, Infinity];
    const limits = rectangle ? rectangle.split(",").map(Number) : everywhere;
    for (const at of placesWithin(map, limits)) {
      const fits = place === "outliers" ? content.fence !== null && map.outlier[at] > content.fence : !place || map.cluster[at] === Number(place);
      if (fits) inside[map.row[at] - 1] = 1;
    }
    return inside;
  }

  /** Return each row's distance to its nearest neighbours; NaN for rows that are not on the map. */
  async function outlierScores() {
    const scores = new Float32Array(about.count).fill(NaN);
    if (!about.clusters.length) return scores;
    const map = mapColumns(await data.load("map"));
    map.row.forEach((row, at) => row && (scores[row - 1] = map.outlier[at]));
    return scores;
  }

  async function scoreValues(name) {
    const content = await data.load(`score-${name}`);
    content.array ??= unpacked(content.values);
    return content.array;
  }

  /** Return the facets that are set, as the part of the address behind "#". */
  function facets() {
    const set = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "") set.set(name, value);
    const text = String(set);
    return text ? `#${text}` : "#";
  }

  /** Set the facets of an address. */
  function restore(hash) {
    form.reset();
    for (const [name, value] of new URLSearchParams(hash.slice(1))) {
      const field = form.elements.namedItem(name);
      if (!field) continue;
      if (field.type === "checkbox") field.checked = true;
      else field.value = value;
    }
  }

  /** Show what the address names: one clip, or what facets ask for. */
  async function follow() {
    const hash = location.hash;
    const name = hash.slice(1);
    if (name && !/[=&]/.test(name)) return open(decodeURIComponent(name));
    if (dialog.open) dialog.close();
    if (hash.replace(/^#$/, "") === listHash.replace(/^#$/, "") && shown) return;
    listHash = hash;
    // An address that the facets gave says nothing new, and they may have gone on since.
    if (hash !== written) restore(hash);
    written = null;
    await find();
  }

  const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
    for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
    return n;
  });

  function crc32(text) {
    let crc = -1;
    for (const one of new TextEncoder().encode(text)) crc = CRC[(crc ^ one) & 255] ^ (crc >>> 8);
    return (crc ^ -1) >>> 0;
  }

  /** Return the row of a key, a kept one before its copies under other names; -1 without one. */
  async function rowOf(key) {
    const hash = crc32(key);
    let found = -1;
    for (let row = columns.hash.indexOf(hash); row >= 0; row = columns.hash.indexOf(hash, row + 1)) {
      const text = await textOf(row);
      if (text.key === key && (found < 0 || text.state === "kept")) found = row;
    }
    return found;
  }

  async function open(key) {
    const row = await rowOf(key);
    if (!shown && !matching.length) await find();
    if (row < 0) return say(`no clip has the key ${key}`);
    const text = await textOf(row);
    dialog.replaceChildren(...(await details(row, text)));
    dialog.dataset.key = key;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    dialog.querySelector("h2").focus();
  }

  const COMMAND_SAFE = /^[\w@%+=:,.\/-]+$/;
  const quoted = (word) => (COMMAND_SAFE.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

  async function details(row, text) {
    const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "\u00d7");
    close.addEventListener("click", () => dialog.close());
    const media = plays && playable(text)
      ? make("video", { controls: true, preload: "none", playsinline: true, src: `clip/${encodeURIComponent(text.key)}.mp4` })
      : strip(row, dialog);
    if (media.tagName === "VIDEO" && text.width) media.style.aspectRatio = `${text.width} / ${text.height}`;
    const facts = [
      ["state", text.state === "kept" ? "kept" : `${text.state} by ${text.stage}`],
      ["reason", text.reason],
      ["source", text.source],
      ["span", span(text)],
      ["clip", shape(text)],
      ["bucket", columns.bucket[row] ? about.buckets[columns.bucket[row] - 1] : ""],
    ];
    const list = make("dl", {});
    for (const [name, value] of facts) if (value) list.append(make("dt", {}, name), make("dd", {}, value));
    const of = columns.of[row] ? columns.of[row] - 1 : row;
    const group = copies.get(of) ?? [];
    const beside = group.length ? make("div", { class: "beside" }, ...[of, ...group.slice(0, 12)].map(card)) : null;
    const scores = make("details", {}, make("summary", {}, "Scores"));
    scores.addEventListener("toggle", () => scores.open && !scores.querySelector("table") && fillScores(scores, row), { once: true });
    return [
      close,
      make("h2", { tabindex: "-1" }, make("code", {}, text.key)),
      media,
      text.caption ? make("p", { class: "whole" }, text.caption) : null,
      list,
      columns.scored[row] && about.scores.length ? scores : null,
      group.length ? make("h3", {}, `Kept, and ${group.length} left out for it`) : null,
      beside,
      plays ? null : make("p", { class: "soft" }, "To play it: ", make("code", {}, `reelweave extract ${quoted(about.dataset)} ${quoted(text.key)}`), ", or ", make("code", {}, `reelweave report ${quoted(about.dataset)} --serve`)),
      make("p", { class: "soft" }, "Arrow keys: the clip before, the clip after."),
    ].filter((one) => one !== null);
  }

  const playable = (text) => text.key !== null;

  async function fillScores(place, row) {
    const body = make("tbody");
    for (const [name, , , min, max] of about.scores) {
      const value = (await scoreValues(name))[columns.scored[row] - 1];
      const out = (min !== null && !(value >= min)) || (max !== null && !(value <= max));
      const cells = [name, Number.isNaN(value) ? "" : value.toPrecision(4), min ?? "", max ?? "", out ? "rejected" : ""];
      body.append(make("tr", {}, ...cells.map((cell) => make("td", {}, String(cell)))));
    }
    const heads = ["score", "value", "at least", "at most", ""].map((name) => make("th", { scope: "col" }, name));
    place.append(make("div", { class: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, ...heads)), body)));
  }

  /** Open the clip before or after the one that is open. */
  async function step(by) {
    let at = matching.indexOf(await rowOf(dialog.dataset.key));
    for (at += by; at >= 0 && at < matching.length; at += by) {
      const { key } = await textOf(matching[at]);
      if (key && key !== dialog.dataset.key) return location.replace(`#${encodeURIComponent(key)}`);
    }
  }

  function keys(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey || ["INPUT", "SELECT", "VIDEO"].includes(event.target.tagName)) return;
    if (dialog.open) {
      if (by) step(by);
      return;
    }
    const all = [...cards.querySelectorAll("a.card")];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const across = Math.max(1, all.findIndex((one) => one.offsetTop > all[0].offsetTop));
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + across, ArrowUp: at - across }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all[to].focus();
  }

  function options() {
    const add = (name, values) => {
      const select = form.elements[name];
      for (const [value, label] of values) select.append(make("option", { value }, label));
    };
    const counts = new Uint32Array(about.kinds.length);
    for (const kind of columns.kind) counts[kind]++;
    const states = new Map(), stages = new Map();
    about.kinds.forEach(([state, stage], place) => {
      states.set(state, (states.get(state) ?? 0) + counts[place]);
      stages.set(stage, (stages.get(stage) ?? 0) + counts[place]);
    });
    const counted = (map) => [...map].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, count]) => [name, `${name} (${count.toLocaleString("en")})`]);
    add("state", counted(states));
    add("stage", counted(stages));
    add("bucket", [...about.buckets.map((name) => [name, name.replaceAll("x", " x ")]), ["none", "none"]]);
    add("score", about.scores.map(([name, least, most]) => [name, `${name} (${least.toPrecision(3)} to ${most.toPrecision(3)})`]));
    add("sort", about.scores.flatMap(([name]) => [[`${name}:up`, `${name}, lowest first`], [`${name}:down`, `${name}, highest first`]]));
    document.getElementById("score-facet").hidden = !about.scores.length;
    document.getElementById("map-facet").hidden = !about.clusters.length;
    if (about.clusters.length) {
      add("place", about.clusters.map((count, place) => [String(place + 1), `cluster ${place + 1} (${count.toLocaleString("en")})`]));
      add("place", [["outliers", `far from all others (${about.outliers.toLocaleString("en")})`]]);
      add("sort", [["outlier", "least like any other first"]]);
    }
  }

  async function start() {
    const [found, place] = await Promise.all([data.load("rows"), data.load("place")]);
    about = found;
    ({ plays, searches } = place);
    columns = {};
    for (const [name, [size, text]] of Object.entries(about.columns)) columns[name] = new ARRAYS[size](bytesOf(text).buffer);
    copies = new Map();
    columns.of.forEach((of, row) => of && (copies.get(of - 1)?.push(row) ?? copies.set(of - 1, [row])));
    options();
    addEventListener("hashchange", follow);
    let pause = 0;
    form.addEventListener("input", () => {
      clearTimeout(pause);
      pause = setTimeout(() => {
        location.replace(facets());
        written = location.hash;
      }, 200);
    });
    document.getElementById("all").addEventListener("click", () => location.replace("#"));
    form.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", keys);
    dialog.addEventListener("close", () => {
      dialog.replaceChildren();
      if (location.hash !== (listHash || "#") && location.hash !== listHash) location.replace(listHash || "#");
    });
    sentinel = new IntersectionObserver((seen) => seen.at(-1).isIntersecting && shown < matching.length && more(), { rootMargin: "800px" });
    await follow();
    document.body.dataset.ready = "yes";
  }

  document.addEventListener("DOMContentLoaded", () =>
    start().catch((error) => {
      say(`the data of this page cannot be read: ${error.message}`);
      console.error(error);
    }),
  );
})();
