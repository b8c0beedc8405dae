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
