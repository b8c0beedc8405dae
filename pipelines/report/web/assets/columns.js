// Numbers of a column that pipelines/report/thresholds.py packed.
"use strict";

/** Return the column as a Float64Array; NaN where a clip has no value. */
function unpacked({ int32, float64, over }) {
  const { buffer } = Uint8Array.from(atob(int32 ?? float64), (one) => one.charCodeAt(0));
  if (float64 !== undefined) return new Float64Array(buffer);
  return Float64Array.from(new Int32Array(buffer), (one) => (one === -(2 ** 31) ? NaN : one / over));
}
