// Write texts, numbers and instants for people. Names come from anybody: what hides or turns a text is written out.

const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const LONGEST = 96;

function escaped(letter) {
  const code = letter.codePointAt(0);
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
}

/** Show a text that somebody else wrote, in at most `most` letters; 0: whole. */
export function visible(text, most = LONGEST) {
  const shown = String(text).slice(0, most ? 4 * most : undefined).replace(HIDDEN, escaped);
  const letters = most ? Array.from(shown) : null;
  if (!letters || (letters.length <= most && String(text).length <= 4 * most)) return shown;
  return `${letters.slice(0, most - 1).join("")}…`;
}

export const number = (value) => value.toLocaleString("en");

export const counted = (value, noun, plural = `${noun}s`) => `${number(value)} ${value === 1 ? noun : plural}`;

/** A share in percent, cut and not rounded: 100 % means all, and 0 % none. */
export function percent(part, whole) {
  if (!whole) return "–";
  if (part === 0 || part === whole) return part ? "100 %" : "0 %";
  const cut = Math.floor((part * 1000) / whole) / 10;
  return cut ? `${cut.toFixed(1)} %` : "<0.1 %";
}

const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** A duration in its two largest units. */
export function duration(us) {
  let seconds = Math.max(0, Math.floor(us / 1e6));
  const parts = [];
  for (const [unit, size] of UNITS) {
    if (seconds >= size || (unit === "s" && !parts.length)) {
      parts.push(`${Math.floor(seconds / size)} ${unit}`);
      seconds %= size;
    } else if (parts.length) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const PARTS = { hourCycle: "h23", hour: "2-digit", minute: "2-digit", second: "2-digit" };
const DATE = { year: "numeric", month: "short", day: "numeric" };
const DAY = { month: "short", day: "numeric" };
// Making a formatter costs a hundred times what using one does.
const made = (options) => ({
  [ZONE]: new Intl.DateTimeFormat("en-GB", { ...options, timeZone: ZONE }),
  UTC: new Intl.DateTimeFormat("en-GB", { ...options, timeZone: "UTC" }),
});
const [TIMES, DATES, DAYS] = [made(PARTS), made(DATE), made(DAY)];
const time = (us, zone) => TIMES[zone].format(us / 1000);
const date = (us, zone) => DATES[zone].format(us / 1000);

/** Whether the reader's clock shows UTC. */
export const inUtc = (us) => time(us, ZONE) === time(us, "UTC") && date(us, ZONE) === date(us, "UTC");

function day(us, now, zone) {
  const [one, other] = [date(us, zone), date(now, zone)];
  if (one === other) return "";
  return `${one.slice(-4) === other.slice(-4) ? DAYS[zone].format(us / 1000) : one}, `;
}

/** An instant as the reader's clock shows it; with its date unless that is today's. */
export const local = (us, now = us) => day(us, now, ZONE) + time(us, ZONE);

/** The same in UTC, to stand beside it: with its date where that is another. */
export const utcBeside = (us) => `${date(us, ZONE) === date(us, "UTC") ? "" : `${DAYS.UTC.format(us / 1000)}, `}${time(us, "UTC")} UTC`;

export const iso = (us) => new Date(us / 1000).toISOString();

export const REASONS = {
  hub_behind: ["hub behind", "The hub has not read all that its archive holds, or cannot reach it."],
  hub_clock: ["hub's clock set back", "The clock of the archive's leader is behind what it has stored: set it right, or wait until it has passed that."],
  region_behind: ["region behind", "The hub's archive does not get what the region's stream holds."],
  contested: ["contested", "Two agents speak for it and do not know of each other."],
  put_back: ["store put back", "An older copy of the agent's store was put back."],
  ordinals_missing: ["advisories missing", "Advisories that the agent counted have not arrived yet."],
  clock: ["clock ahead", "The site's stream claims times that the hub has not reached yet."],
  agent_behind: ["agent catching up", "The agent is reading what it missed."],
  not_stored: ["stream does not store", "The agent says that its stream does not store what it is sent, or that nothing proves that it does."],
  not_read: ["stream not read", "The agent says that it cannot read its stream: the site's server or the link to it is down, or its disk is full."],
  agent_silent: ["agent silent", "No word comes: the agent or its link to the region is down; of a pair, or an older agent, perhaps its stream."],
  agent_stopped: ["agent stopped", "The agent was told to stop, and has not started again: an upgrade, or a restart of its host."],
  never_vouched: ["never vouched for", "No agent has vouched for it yet."],
  unobserved: ["nobody watched", "Its stream was not seen, or could not store."],
  lost_store: ["agent lost its store", "Its agent has not heard of it since it lost its store."],
  unheard: ["could not be heard", "Its stream had ceased to take what it publishes."],
};

export const reason = (name) => REASONS[name]?.[0] ?? visible(String(name).replaceAll("_", " "), 40);
export const remedy = (name) => REASONS[name]?.[1] ?? "";
