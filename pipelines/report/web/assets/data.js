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
          script.addEventListener("error", () => {
            data.forget(name); // so that it is asked for again
            reject(new Error(`${script.src} is not there`));
          });
          document.head.append(script);
        }),
      );
    }
    return data.files.get(name);
  },

  /** Return the content of data/NAME.js, and keep no copy. */
  async once(name) {
    try {
      return await data.load(name);
    } finally {
      data.forget(name);
    }
  },

  /** Free what is kept of a file, and its script. */
  forget(name) {
    data.files.delete(name);
    data.arrivals.delete(name);
    for (const script of [...document.scripts]) if (script.getAttribute("src") === `data/${name}.js`) script.remove();
  },
};

/** Return the bytes of a text in base64. */
function bytesOf(text) {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place++) found[place] = raw.charCodeAt(place);
  return found;
}

/** Return a column that pipelines/report/thresholds.py packed as a Float64Array; NaN where a clip has no value. */
function unpacked({ int8, int16, int32, float64, over }) {
  const { buffer } = bytesOf(int8 ?? int16 ?? int32 ?? float64);
  if (float64 !== undefined) return new Float64Array(buffer);
  const whole = int8 !== undefined ? new Int8Array(buffer) : int16 !== undefined ? new Int16Array(buffer) : new Int32Array(buffer);
  const missing = -(2 ** (8 * whole.BYTES_PER_ELEMENT - 1));
  const found = new Float64Array(whole.length);
  for (let place = 0; place < whole.length; place++) found[place] = whole[place] === missing ? NaN : whole[place] / over;
  return found;
}

/** Return the columns of data/map.js; "row" is the gallery's row plus 1, 0 without one. */
function mapColumns({ columns }) {
  const found = {};
  for (const [name, text] of Object.entries(columns)) {
    const { buffer } = bytesOf(text);
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
