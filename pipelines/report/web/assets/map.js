// The map of embeddings: points from data/map.js, a rectangle that leads to the gallery with exactly the clips inside.
"use strict";

(() => {
  const FIELDS = ["x_from", "x_to", "y_from", "y_to"];
  const form = document.getElementById("selection");
  let points; // rows handed to the chart
  let columns;

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
  async function clicked(_, item) {
    if (!item?.datum || item.datum.place === undefined) return;
    const row = columns.row[item.datum.place] - 1;
    const about = await data.load("rows");
    const number = Math.floor(row / about.chunkRows);
    const chunk = await data.load(`clips-${String(number + 1).padStart(4, "0")}`);
    const key = chunk.key[row % about.chunkRows];
    if (key) location.href = `gallery.html#${encodeURIComponent(key)}`;
  }

  async function fill(view) {
    const content = await data.load("map");
    columns = mapColumns(content);
    points = Array.from(columns.x, (x, place) => ({
      place,
      x,
      y: columns.y[place],
      series: String(columns.cluster[place]),
      far: content.fence !== null && columns.outlier[place] > content.fence,
      label: `cluster ${columns.cluster[place]}`,
    }));
    view.addSignalListener("brush", brushed);
    view.addEventListener("click", clicked);
    await view.data("points", points).runAsync();
    form.hidden = false;
    form.addEventListener("input", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("nothing").addEventListener("click", () => brushed("", {}));
    show();
    document.body.dataset.ready = points.length;
  }

  document.addEventListener("drawn", ({ detail: view }) => fill(view).catch((error) => console.error(error)));
})();
