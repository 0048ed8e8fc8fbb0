// The hub's time: what it last said, and how long ago that was by a clock that nobody sets.

let said = 0;
let heardAt = 0;

export function setHubTime(us) {
  if (!us) return;
  said = us;
  heardAt = performance.now();
}

/** The hub's time now in microseconds; 0 before it said any. */
export const hubNow = () => (said ? said + Math.round((performance.now() - heardAt) * 1000) : 0);
