// Data files beside a page: scripts that hand over their content, since a page that was opened from a disk reads no others.
"use strict";

const data = {
  arrivals: new Map(), // what waits for a file, by its name
  files: new Map(), // promises of files that were asked for

  /** Take the content of a file; called by the file. */
  receive(name, content) {
    data.arrivals.get(name)?.(content);
  },

  /** Return the content of data/NAME.js, which is loaded once. */
  load(name) {
    if (!data.files.has(name)) {
      data.files.set(
        name,
        new Promise((resolve, reject) => {
          data.arrivals.set(name, resolve);
          const script = document.createElement("script");
          script.src = `data/${name}.js`;
          script.addEventListener("error", () => reject(new Error(`${script.src} is not there`)));
          document.head.append(script);
        }),
      );
    }
    return data.files.get(name);
  },
};

/** Return a column that pipelines/report/thresholds.py packed as a Float64Array; NaN where a clip has no value. */
function unpacked({ int32, float64, over }) {
  const { buffer } = Uint8Array.from(atob(int32 ?? float64), (one) => one.charCodeAt(0));
  if (float64 !== undefined) return new Float64Array(buffer);
  return Float64Array.from(new Int32Array(buffer), (one) => (one === -(2 ** 31) ? NaN : one / over));
}

/** Return the columns of data/map.js; "row" is the gallery's row plus 1, 0 without one. */
function mapColumns({ columns }) {
  const found = {};
  for (const [name, text] of Object.entries(columns)) {
    const { buffer } = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    found[name] = ["row", "cluster"].includes(name) ? new Uint32Array(buffer) : new Float32Array(buffer);
  }
  return found;
}

/** Return the places of the map's clips within a rectangle, edges included, that have a row in the gallery. */
function placesWithin({ row, x, y }, [xFrom, xTo, yFrom, yTo]) {
  const found = [];
  for (let place = 0; place < x.length; place++) {
    if (row[place] && x[place] >= xFrom && x[place] <= xTo && y[place] >= yFrom && y[place] <= yTo) found.push(place);
  }
  return found;
}
