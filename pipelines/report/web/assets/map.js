// The map of embeddings: points from data/map.js, a rectangle that leads to the gallery with exactly the clips inside.
"use strict";

(() => {
  const MOST_MARKS = 5000; // of Vega; beyond, points are painted below its axes and its rectangle
  const REACH_PX = 6; // from a click to a painted point
  const FIELDS = ["x_from", "x_to", "y_from", "y_to"];
  const form = document.getElementById("selection");
  let columns;
  let view; // of Vega

  /** Return the limits in the fields; null unless all four are numbers. */
  function limits() {
    const found = FIELDS.map((name) => form.elements[name].value).map((text) => (text === "" ? NaN : Number(text)));
    return found.some(Number.isNaN) ? null : found;
  }

  function show() {
    const rectangle = limits();
    const chosen = rectangle ? placesWithin(columns, rectangle) : [];
    const link = document.getElementById("open");
    document.getElementById("chosen").textContent = chosen.length ? `${chosen.length.toLocaleString("en")} of ${columns.x.length.toLocaleString("en")} clips are chosen.` : "No clip is chosen.";
    link.hidden = !chosen.length;
    if (chosen.length) link.href = `gallery.html#map=${encodeURIComponent(rectangle.join(","))}`;
    form.dataset.chosen = chosen.length;
  }

  /** Follow the rectangle that is drawn. */
  function brushed(_, { x, y }) {
    const drawn = x && y ? [Math.min(...x), Math.max(...x), Math.min(...y), Math.max(...y)] : ["", "", "", ""];
    FIELDS.forEach((name, place) => (form.elements[name].value = drawn[place]));
    show();
  }

  /** Open the clip of a point that was clicked. */
  async function clicked(event, item) {
    const place = item?.datum?.place ?? nearest(event);
    if (place === undefined || place < 0) return;
    const row = columns.row[place] - 1;
    const about = await data.load("rows");
    const number = Math.floor(row / about.chunkRows);
    const chunk = await data.load(`clips-${String(number + 1).padStart(4, "0")}`);
    const key = Array.isArray(chunk.key) ? chunk.key[row % about.chunkRows] : chunk.key;
    if (key) location.href = `gallery.html#${encodeURIComponent(key)}`;
  }

  /** Return the place of the point that is nearest to a click; -1 where none is near. */
  function nearest(event) {
    const canvas = view.container().querySelector("canvas.marks").getBoundingClientRect();
    const [left, top] = view.origin();
    const [x, y] = [view.scale("x"), view.scale("y")];
    const at = [event.clientX - canvas.left - left, event.clientY - canvas.top - top];
    let found = -1, least = REACH_PX ** 2;
    for (let place = 0; place < columns.x.length; place++) {
      const far = (x(columns.x[place]) - at[0]) ** 2 + (y(columns.y[place]) - at[1]) ** 2;
      if (far <= least) [found, least] = [place, far];
    }
    return found;
  }

  /** Return the places that Vega draws: all, or of many those that span the axes, and the first that are far from all others. */
  function marked(fence) {
    const all = Array.from(columns.x.keys());
    if (all.length <= MOST_MARKS) return all;
    const ends = new Set();
    for (const axis of [columns.x, columns.y]) {
      let low = 0, high = 0;
      axis.forEach((value, place) => {
        if (value < axis[low]) low = place;
        if (value > axis[high]) high = place;
      });
      ends.add(low).add(high);
    }
    const far = all.filter((place) => fence !== null && columns.outlier[place] > fence);
    return [...new Set([...ends, ...far.slice(0, MOST_MARKS)])];
  }

  /** Paint all points where Vega's axes have them, below its marks. */
  function paint() {
    const marks = view.container().querySelector("canvas.marks");
    const [left, top] = view.origin();
    const [width, height] = [view.width(), view.height()];
    let canvas = document.getElementById("painted");
    if (!canvas) {
      canvas = document.createElement("canvas");
      canvas.id = "painted";
      canvas.style.position = "absolute"; // so that it moves nothing
      marks.before(canvas);
      marks.parentElement.style.cssText += "; position: relative; isolation: isolate";
    }
    const fine = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * fine), Math.round(height * fine)];
    canvas.style.cssText = `position: absolute; z-index: -1; pointer-events: none; left: ${marks.offsetLeft + left}px; top: ${marks.offsetTop + top}px; width: ${width}px; height: ${height}px`;
    const brush = canvas.getContext("2d");
    const [x, y, colour] = [view.scale("x"), view.scale("y"), view.scale("color")];
    const side = Math.max(1.5, Math.min(3, 200 / Math.sqrt(columns.x.length))) * fine;
    const colours = new Map([...new Set(columns.cluster)].map((cluster) => [cluster, colour(String(cluster))]));
    brush.globalAlpha = 0.75;
    for (let place = 0; place < columns.x.length; place++) {
      brush.fillStyle = colours.get(columns.cluster[place]);
      brush.fillRect(x(columns.x[place]) * fine - side / 2, y(columns.y[place]) * fine - side / 2, side, side);
    }
    canvas.dataset.points = columns.x.length;
  }

  async function fill(drawn) {
    view = drawn;
    const content = await data.load("map");
    columns = mapColumns(content);
    const points = marked(content.fence).map((place) => ({
      place,
      x: columns.x[place],
      y: columns.y[place],
      series: String(columns.cluster[place]),
      far: content.fence !== null && columns.outlier[place] > content.fence,
      label: `cluster ${columns.cluster[place]}`,
    }));
    view.addSignalListener("brush", brushed);
    view.addEventListener("click", clicked);
    await view.data("points", points).resize().runAsync(); // with room for the labels of the new values
    if (points.length < columns.x.length) {
      paint();
      view.addResizeListener(() => requestAnimationFrame(paint));
    }
    form.hidden = false;
    form.addEventListener("input", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("nothing").addEventListener("click", () => brushed("", {}));
    show();
    document.body.dataset.ready = columns.x.length;
  }

  document.addEventListener("drawn", ({ detail: view }) => fill(view).catch((error) => console.error(error)));
})();
