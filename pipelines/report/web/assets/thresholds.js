// Thresholds that can be moved: what would be kept is counted from the scores of all clips that were cut.
"use strict";

(() => {
  const STATES = ["kept", "filtered", "duplicate", "failed"]; // reelweave.loader.dataset.schema.STATES
  const [KEPT, FILTERED, DUPLICATE] = [0, 1, 2];

  const unpackedFiles = new Map(); // promises of columns by the name of their file

  /** Return the columns of a data file. */
  function load(name) {
    if (!unpackedFiles.has(name)) {
      const columns = (packed) => Object.fromEntries(Object.entries(packed).map(([key, one]) => [key, unpacked(one)]));
      unpackedFiles.set(name, data.load(name).then(columns));
    }
    return unpackedFiles.get(name);
  }

  /** Return whether each clip passes all limits, as curate/filters/decision.py decides. */
  function passes(count, limits, columns) {
    const passed = new Uint8Array(count).fill(1);
    for (const [key, at] of Object.entries(limits)) {
      const values = columns[scoreOf(key)];
      const isMin = key.startsWith("min_");
      for (let clip = 0; clip < count; clip++) {
        // A missing score is NaN, which is on neither side.
        if (!(isMin ? values[clip] >= at : values[clip] <= at)) passed[clip] = 0;
      }
    }
    return passed;
  }

  const scoreOf = (key) => key.slice("min_".length);

  /** Return each clip's state under other thresholds, and what changes. */
  function judged(clips, before, after) {
    const states = Float64Array.from(clips.state);
    const change = { kept: 0, seconds: 0, come: 0, go: 0, freed: new Set() };
    for (let clip = 0; clip < states.length; clip++) {
      if (before[clip] && !after[clip]) {
        if (states[clip] === KEPT) change.go++;
        if (states[clip] === KEPT || states[clip] === DUPLICATE) states[clip] = FILTERED;
      } else if (!before[clip] && after[clip]) {
        states[clip] = KEPT;
        change.come++;
      }
    }
    for (let clip = 0; clip < states.length; clip++) {
      const original = clips.original[clip];
      if (states[clip] === DUPLICATE && original >= 0 && states[original] !== KEPT) change.freed.add(original);
      if (states[clip] === KEPT) {
        change.kept++;
        change.seconds += clips.seconds[clip];
      }
    }
    return { states, change };
  }

  /** Return counts by state and bin, for the chart's data. */
  function binned(values, states, edges) {
    const bins = edges.length - 1;
    const counts = STATES.map(() => new Uint32Array(bins));
    for (let clip = 0; clip < values.length; clip++) {
      const value = values[clip];
      if (!(value >= edges[0] && value <= edges[bins]) || states[clip] >= STATES.length) continue;
      let bin = Math.min(bins - 1, Math.floor(((value - edges[0]) / (edges[bins] - edges[0] || 1)) * bins));
      while (bin > 0 && value < edges[bin]) bin--;
      while (bin < bins - 1 && value >= edges[bin + 1]) bin++;
      counts[states[clip]][bin]++;
    }
    return STATES.flatMap((series, state) =>
      [...counts[state]].map((count, bin) => ({ low: edges[bin], high: edges[bin + 1], count, series })).filter((one) => one.count),
    );
  }

  function ready() {
    const told = document.getElementById("thresholds");
    if (!told) return;
    const { set, command } = JSON.parse(told.textContent);
    const limits = { ...set };
    const rows = [...document.querySelectorAll(".threshold")];
    const outcome = document.getElementById("what-if");
    const text = (id, value) => (document.getElementById(id).textContent = value);
    const changed = () => [...new Set([...Object.keys(set), ...Object.keys(limits)])].filter((key) => set[key] !== limits[key]);
    let asked = 0;

    async function update() {
      const mine = ++asked;
      const names = new Set([...Object.keys(set), ...Object.keys(limits)].map(scoreOf));
      for (const [name, view] of report.views) if (view && name.startsWith("score-")) names.add(name.slice("score-".length));
      delete outcome.dataset.counted;
      const wanted = [...names].filter((name) => rows.some((row) => row.dataset.score === name));
      const clips = await load("clips");
      const loaded = await Promise.all(wanted.map((name) => load(`score-${name}`)));
      if (mine !== asked) return; // another one came meanwhile
      const columns = Object.fromEntries(wanted.map((name, place) => [name, loaded[place].values]));
      const known = (of) => Object.fromEntries(Object.entries(of).filter(([key]) => scoreOf(key) in columns));
      const count = clips.state.length;
      const { states, change } = judged(clips, passes(count, known(set), columns), passes(count, known(limits), columns));
      for (const name of wanted) redraw(name, columns[name], states);
      show(clips, change);
      outcome.dataset.counted = JSON.stringify({ kept: change.kept, come: change.come, go: change.go });
    }

    function redraw(name, values, states) {
      const figure = document.getElementById(`score-${name}`);
      const view = report.views.get(figure.id);
      if (!view) return;
      const { edges } = JSON.parse(figure.querySelector("script.spec").textContent).usermeta;
      const lines = ["min_", "max_"].map((bound) => bound + name).filter((key) => key in limits);
      view.data("bins", binned(values, states, edges));
      view.data("thresholds", lines.map((key) => ({ label: key, at: limits[key] })));
      view.resize().runAsync();
    }

    function show(clips, change) {
      const before = clips.state.reduce((sum, state) => sum + (state === KEPT), 0);
      const keys = changed();
      outcome.hidden = keys.length === 0;
      const number = (value, digits = 0) => value.toLocaleString("en", { maximumFractionDigits: digits });
      text("what-if-counts", `${number(before)} clips are kept; then ${number(change.kept)}, ${number(change.seconds, 1)} s: ${number(change.come)} come, ${number(change.go)} go.`);
      const notes = [];
      if (change.come) notes.push("Those that come may yet be dropped as duplicates.");
      if (change.freed.size) notes.push(`${number(change.freed.size)} of those that go have copies, one of which may take their place.`);
      text("what-if-note", notes.join(" "));
      const sets = keys.map((key) => ` --set filters.${key}=${limits[key] ?? "null"}`).join("");
      text("what-if-command", (command || "reelweave curate INPUT --out DATASET --update") + sets);
    }

    /** Round to what the eye can tell apart on the score's range. */
    function rounded(value, row) {
      const range = Number(row.dataset.most) - Number(row.dataset.least) || Math.abs(value) || 1;
      const step = 10 ** Math.floor(Math.log10(range / 200));
      return Number((Math.round(value / step) * step).toPrecision(12));
    }

    function move(row, value) {
      const { key } = row.dataset;
      if (value === null || Number.isNaN(value)) delete limits[key];
      else limits[key] = value;
      place(row);
      return update();
    }

    function place(row) {
      const [slider, number] = row.querySelectorAll("input");
      const at = limits[row.dataset.key];
      if (document.activeElement !== number) number.value = at ?? "";
      slider.value = at ?? (row.dataset.key.startsWith("min_") ? slider.min : slider.max);
    }

    for (const row of rows) {
      row.hidden = false;
      const [slider, number] = row.querySelectorAll("input");
      const reach = [Number(row.dataset.least), Number(row.dataset.most), ...(row.dataset.key in set ? [set[row.dataset.key]] : [])];
      [slider.min, slider.max, slider.step] = [Math.min(...reach), Math.max(...reach), "any"];
      place(row);
      slider.addEventListener("input", () => move(row, rounded(slider.valueAsNumber, row)));
      number.addEventListener("input", () => move(row, number.value === "" ? null : number.valueAsNumber));
    }

    document.getElementById("what-if-reset").addEventListener("click", () => {
      for (const key of Object.keys(limits)) delete limits[key];
      Object.assign(limits, set);
      rows.forEach(place);
      update();
    });

    // A line is dragged in the chart itself; the nearest one is taken.
    document.addEventListener("drawn", ({ target: figure, detail: view }) => {
      const own = rows.filter((row) => figure.contains(row));
      if (!own.length) return;
      if (changed().length) update(); // it was scrolled to after a change
      const canvas = figure.querySelector("canvas");
      canvas.style.touchAction = "pan-y";
      const at = (event) => event.offsetX - view.origin()[0];
      let held = null;
      canvas.addEventListener("pointerdown", (event) => {
        const scale = view.scale("x");
        const distance = (row) => Math.abs(scale(limits[row.dataset.key]) - at(event));
        const lines = own.filter((row) => row.dataset.key in limits && distance(row) < 12);
        held = lines.sort((a, b) => distance(a) - distance(b))[0] ?? null;
        if (held) canvas.setPointerCapture(event.pointerId);
      });
      canvas.addEventListener("pointermove", (event) => {
        if (held) move(held, rounded(view.scale("x").invert(at(event)), held));
      });
      canvas.addEventListener("pointerup", () => (held = null));
    });
  }

  document.addEventListener("DOMContentLoaded", ready);
})();
