r"""The page's script, which draws the charts."""

SCRIPT = r"""
(function () {
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const ops = data.operators, blocks = data.blocks;
const CAUSES = {arrival: "waits for a tensor from the host",
                memory: "waits for memory that is being copied to the host"};
let course = data.courses[0];
let range = [0, course.end];

// --- numbers ---------------------------------------------------------------------------------

const unitOf = most => most >= 1e9 ? [1e9, "GB"] : [1e6, "MB"];
const size = bytes => bytes >= 1e9 ? (bytes / 1e9).toFixed(2) + " GB"
  : bytes >= 1e6 ? (bytes / 1e6).toFixed(1) + " MB" : (bytes / 1e3).toFixed(1) + " kB";
const time = ms => ms >= 1e4 ? (ms / 1e3).toFixed(1) + " s" : ms.toFixed(ms < 10 ? 2 : 1) + " ms";
const color = name => "var(--" + name + ")";
const safe = text => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

function ticks(low, high, count) {
  const rough = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) {
    found.push(k * step);
  }
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return found.map(value => [value, value.toFixed(digits)]);
}

// The last index whose value is not greater.
function before(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) { low = middle + 1; } else { high = middle; }
  }
  return low - 1;
}

// --- frames ----------------------------------------------------------------------------------

// A chart's coordinates, and its axes as SVG. x and y are [low, high].
function frame(element, height, x, y, labels) {
  const width = element.clientWidth;
  const left = 46, right = width - 10, top = 24, bottom = height - 36;
  const scale = (low, high, from, to) => value => from + (value - low) / (high - low) * (to - from);
  const at = {width, height, left, right, top, bottom, x: scale(x[0], x[1], left, right),
              time: pixel => x[0] + (pixel - left) / (right - left) * (x[1] - x[0])};
  let svg = "";
  if (y) {
    at.y = scale(y[0], y[1], bottom, top);
    for (const [value, text] of ticks(y[0], y[1], 5)) {
      const line = at.y(value);
      svg += `<line class="grid" x1="${left}" x2="${right}" y1="${line}" y2="${line}"/>` +
        `<text x="${left - 6}" y="${line + 4}" text-anchor="end">${text}</text>`;
    }
  }
  svg += (labels.y ? `<text x="0" y="12">${safe(labels.y)}</text>` : "") +
    `<text x="${right}" y="${height - 2}" text-anchor="end">${safe(labels.x)}</text>` +
    `<line class="base" x1="${left}" x2="${right}" y1="${bottom}" y2="${bottom}"/>`;
  for (const [value, text] of ticks(x[0], x[1], Math.max(4, (right - left) / 110))) {
    const tick = at.x(value), anchor = tick > right - 12 ? "end" : "middle";
    svg += `<line class="base" x1="${tick}" x2="${tick}" y1="${bottom}" y2="${bottom + 4}"/>` +
      `<text x="${tick}" y="${bottom + 17}" text-anchor="${anchor}">${text}</text>`;
  }
  at.axes = svg;
  return at;
}

function show(element, at, content, title) {
  const clip = element.id + "-clip";
  element.innerHTML = `<svg role="img" aria-label="${safe(title)}" height="${at.height}" ` +
    `viewBox="0 0 ${at.width} ${at.height}"><clipPath id="${clip}">` +
    `<rect x="${at.left}" y="${at.top}" ` +
    `width="${Math.max(0, at.right - at.left)}" height="${at.bottom - at.top + 1}"/></clipPath>` +
    `${at.axes}<g clip-path="url(#${clip})">${content}</g>` +
    `<line class="cross" y1="${at.top}" y2="${at.bottom}" visibility="hidden"/>` +
    `<rect class="select" y="${at.top}" height="${at.bottom - at.top}" visibility="hidden"/></svg>`;
}

function legend(element, entries) {
  element.parentNode.querySelector(".legend").innerHTML = entries.map(([text, name, kind]) => {
    const style = kind ? `border-color:${color(name)}` : `background:${color(name)}`;
    return `<span><i class="${kind || ""}" style="${style}"></i>${safe(text)}</span>`;
  }).join("");
}

// --- shapes ----------------------------------------------------------------------------------

// A curve of steps. Where there are more points than pixels, the extremes of each pixel.
function steps(at, times, values, end) {
  const first = Math.max(0, before(times, range[0])), last = before(times, range[1]);
  if (last < first) { return ""; }
  const dense = last - first > 3 * (at.right - at.left);
  const begin = at.x(Math.max(range[0], times[first]));
  let path = `M${begin.toFixed(2)} ${at.y(values[first]).toFixed(2)}`;
  for (let i = first + 1; i <= last;) {
    const pixel = Math.floor(at.x(times[i]));
    let low = values[i], high = values[i], k = i + 1;
    while (dense && k <= last && Math.floor(at.x(times[k])) === pixel) {
      low = Math.min(low, values[k]);
      high = Math.max(high, values[k]);
      ++k;
    }
    path += `H${at.x(times[i]).toFixed(2)}`;
    if (high !== low) { path += `V${at.y(high).toFixed(2)}V${at.y(low).toFixed(2)}`; }
    path += `V${at.y(values[k - 1]).toFixed(2)}`;
    i = k;
  }
  return path + `H${at.x(Math.min(range[1], end)).toFixed(2)}`;
}

// Bars of a lane. Of several in half a pixel, the one that takes most of it.
function bars(at, spans, top, height) {
  const bins = Math.max(1, Math.round(2 * (at.right - at.left)));
  const width = (range[1] - range[0]) / bins;
  const shares = new Map();
  for (const [begin, end, name] of spans) {
    if (end <= range[0] || begin >= range[1]) { continue; }
    if (!shares.has(name)) { shares.set(name, new Float64Array(bins)); }
    const mine = shares.get(name);
    const from = Math.max(0, (begin - range[0]) / width);
    const to = Math.min(bins, (end - range[0]) / width);
    for (let bin = Math.floor(from); bin < to; ++bin) {
      mine[bin] += Math.min(to, bin + 1) - Math.max(from, bin);
    }
  }
  let svg = "", begun = 0, current = null;
  for (let bin = 0; bin <= bins; ++bin) {
    let best = null, most = 0.25;
    if (bin < bins) {
      for (const [name, share] of shares) {
        if (share[bin] > most) { best = name; most = share[bin]; }
      }
    }
    if (best !== current) {
      if (current) {
        svg += `<rect x="${at.left + begun / 2}" y="${top}" width="${(bin - begun) / 2}" ` +
          `height="${height}" fill="${color(current)}"/>`;
      }
      begun = bin;
      current = best;
    }
  }
  return svg;
}

// --- charts ----------------------------------------------------------------------------------

const charts = {};

charts.memory = {
  draw(element) {
    const most = 1.08 * data.scale;
    const [unit, name] = unitOf(most);
    const labels = {x: "time (ms)", y: `memory (${name})`};
    const at = frame(element, 320, range, [0, most / unit], labels);
    const scaled = values => values.map(value => value / unit);
    const gpu = steps(at, course.starts, scaled(course.used), course.end);
    const held = scaled(course.host.map(p => p[1]));
    const host = steps(at, course.host.map(p => p[0]), held, course.end);
    const living = steps(at, course.starts, scaled(ops.living), course.end);
    const line = (path, name, more) =>
      `<path d="${path}" fill="none" stroke="${color(name)}" stroke-width="2" ${more || ""}/>`;
    const limit = at.y(data.limit / unit);
    show(element, at,
      `<path d="${gpu}V${at.bottom}H${at.left}Z" fill="${color("gpu")}" opacity=".12"/>` +
      line(living, "muted", 'stroke-dasharray="5 3"') + line(host, "host") + line(gpu, "gpu") +
      `<line x1="${at.left}" x2="${at.right}" y1="${limit}" y2="${limit}" ` +
      `stroke="${color("limit")}"/>`,
      "GPU and host memory over time");
    legend(element, [["GPU", "gpu", "line"], ["host", "host", "line"],
      ["GPU without LMS", "muted", "line dashed"],
      ["limit, " + size(data.limit) + (data.limit > data.scale ? ", above" : ""),
        "limit", "line"]]);
    return at;
  },
  tell(at, now) {
    const i = Math.max(0, before(course.starts, now));
    const h = before(course.host.map(p => p[0]), now);
    return told(now) + `<br>GPU <b>${size(course.used[i])}</b><br>host <b>${
      h < 0 ? size(0) : size(course.host[h][1])}</b><br>without LMS <b>${size(ops.living[i])}</b>`;
  },
};

charts.lanes = {
  rows: ["operators", "host to GPU", "GPU to host"],
  draw(element) {
    const at = frame(element, 196, range, null, {x: "time (ms)"});
    const height = 22, y = row => at.top + row * 46;
    const work = [];
    course.starts.forEach((start, i) => {
      if (course.stalls[i] > 0) { work.push([start - course.stalls[i], start, "stall"]); }
      work.push([start, start + ops.duration[i], "phase-" + ops.phase[i]]);
    });
    const copies = way => course.transfers.filter(t => t[0] === way)
      .map(t => [t[2], t[3], way ? "in" : "out"]);
    at.axes += this.rows.map((text, row) =>
      `<text x="${at.left}" y="${y(row) - 6}">${text}</text>`).join("");
    show(element, at, bars(at, work, y(0), height) + bars(at, copies(1), y(1), height) +
      bars(at, copies(0), y(2), height), "Operators and transfers over time");
    const present = data.phases.map((text, k) => [text, "phase-" + k])
      .filter((_, k) => ops.phase.includes(k));
    const waits = course.stalls.some(stall => stall > 0) ? [["waiting", "stall"]] : [];
    legend(element, present.concat(waits));
    return at;
  },
  tell(at, now) {
    const under = course.transfers.filter(t => t[2] <= now && now < t[3]);
    return told(now) + under.map(t => `<br>${t[0] ? "host to GPU" : "GPU to host"}: <b>${
      size(blocks.bytes[t[1]])}</b>, ${data.roles[blocks.role[t[1]]]}`).join("");
  },
};

charts.absences = {
  draw(element) {
    const top = course.absences.reduce((most, a) => Math.max(most, a[3] + blocks.bytes[a[0]]), 1);
    const [unit, name] = unitOf(top);
    const at = frame(element, 280, range, [0, 1.04 * top / unit],
      {x: "time (ms)", y: `not on the GPU (${name})`});
    const paths = {};
    for (const [block, begin, end, offset] of course.absences) {
      if (end <= range[0] || begin >= range[1]) { continue; }
      const low = at.y(offset / unit), high = at.y((offset + blocks.bytes[block]) / unit);
      const gap = low - high > 3 ? 0.8 : 0;
      const x = at.x(Math.max(begin, range[0])), right = at.x(Math.min(end, range[1]));
      const role = blocks.role[block];
      paths[role] = (paths[role] || "") + `M${x.toFixed(2)} ${low.toFixed(2)}H${right.toFixed(2)}V${
        Math.min(high + gap, low - 0.4).toFixed(2)}H${x.toFixed(2)}Z`;
    }
    const shapes = Object.keys(paths).map(role =>
      `<path d="${paths[role]}" fill="${color("role-" + role)}"/>`);
    show(element, at, shapes.join(""), "Absent tensors over time");
    legend(element, data.roles.map((role, k) => [role, "role-" + k]).filter((_, k) => paths[k]));
    this.top = 1.04 * top;
    return at;
  },
  tell(at, now, y) {
    const there = course.absences.filter(a => a[1] <= now && now < a[2]);
    const bytes = (at.bottom - y) / (at.bottom - at.top) * this.top;
    const hit = there.find(a => a[3] <= bytes && bytes < a[3] + blocks.bytes[a[0]]);
    const all = there.reduce((sum, a) => sum + blocks.bytes[a[0]], 0);
    const text = `<b>${time(now)}</b>: ${size(all)} out`;
    return hit ? text + `<br>${data.roles[blocks.role[hit[0]]]}, <b>${size(blocks.bytes[hit[0]])}` +
      `</b><br>out from ${time(hit[1])} to ${time(hit[2])}` : text;
  },
};

charts.points = {
  fixed: true,
  draw(element) {
    const memory = data.points.map(p => p[0]);
    const [unit, name] = unitOf(Math.max(...memory));
    const low = Math.min(...memory), high = Math.max(...memory);
    const margin = (high - low || high) * 0.03;
    const most = 1.06 * Math.max(...data.points.map(p => Math.max(p[1], p[2])));
    const at = frame(element, 280, [(low - margin) / unit, (high + margin) / unit], [0, most],
      {x: `GPU memory (${name})`, y: "time of an iteration (ms)"});
    at.unit = unit;
    const here = at.x(data.gpuMemory / unit);
    const line = (column, name, dashed) => `<polyline fill="none" stroke="${color(name)}" ` +
      `stroke-width="2" ${dashed ? 'stroke-dasharray="5 3"' : ""} points="${data.points.map(p =>
        at.x(p[0] / unit).toFixed(1) + "," + at.y(p[column]).toFixed(1)).join(" ")}"/>` +
      (dashed ? "" : data.points.map(p => `<circle r="3" cx="${at.x(p[0] / unit).toFixed(1)}" cy="${
        at.y(p[column]).toFixed(1)}" fill="${color(name)}"/>`).join(""));
    show(element, at, `<line x1="${here}" x2="${here}" y1="${at.top}" y2="${at.bottom}" ` +
      `stroke="${color("limit")}"/>` + line(2, "host") + line(1, "gpu") + line(3, "muted", true),
      "Time of an iteration by GPU memory");
    legend(element, [["planned transfers", "gpu", "line"], ["transfers on demand", "host", "line"],
      ["lower bound", "muted", "line dashed"],
      ["this report, " + size(data.gpuMemory), "limit", "line"]]
      .slice(0, memory.includes(data.gpuMemory) ? 4 : 3));
    return at;
  },
  tell(at, now) {
    const near = data.points.reduce((a, b) =>
      Math.abs(b[0] / at.unit - now) < Math.abs(a[0] / at.unit - now) ? b : a);
    return `<b>${size(near[0])}</b><br>planned <b>${time(near[1])}</b><br>on demand <b>${
      time(near[2])}</b><br>lower bound <b>${time(near[3])}</b>`;
  },
};

charts.roles = {
  fixed: true,
  draw(element) {
    const width = element.clientWidth, all = data.memory.reduce((sum, m) => sum + m[1], 0);
    let x = 0;
    element.innerHTML = '<svg role="img" aria-label="Memory by role" height="30" ' +
      `viewBox="0 0 ${width} 30">` + data.memory.map(([role, bytes]) => {
        const wide = bytes / all * width;
        const rect = `<rect x="${x}" y="2" height="26" rx="2" ` +
          `width="${Math.max(0.5, wide - 1.5)}" ` +
          `fill="${color("role-" + data.roles.indexOf(role))}"/>`;
        x += wide;
        return rect;
      }).join("") + "</svg>";
    legend(element, data.memory.map(([role, bytes]) =>
      [`${role} ${size(bytes)}`, "role-" + data.roles.indexOf(role)]));
  },
};

function told(now) {
  let i = Math.max(0, before(course.starts, now));
  let text = "";
  if (i + 1 < course.starts.length && now >= course.starts[i + 1] - course.stalls[i + 1]) {
    i += 1;
    text = "<br>" + CAUSES[course.causes[i]];
  } else if (i === 0 && now < course.starts[0]) {
    text = "<br>" + CAUSES[course.causes[0]];
  }
  const name = safe(data.names[ops.name[i]]);
  return `<b>${time(now)}</b><br>${name} (${data.phases[ops.phase[i]]})` + text;
}

// --- pointers --------------------------------------------------------------------------------

const frames = {};
const elements = {};
let from = null;

function hide() {
  document.querySelectorAll(".tip").forEach(tip => tip.remove());
  document.querySelectorAll(".cross, .select").forEach(e => e.setAttribute("visibility", "hidden"));
}

function point(name, event) {
  const element = elements[name], at = frames[name], box = element.getBoundingClientRect();
  const x = Math.min(at.right, Math.max(at.left, event.clientX - box.left));
  const now = at.time(x);
  hide();
  for (const other of Object.keys(frames)) {
    if (other === name || !(charts[other].fixed || charts[name].fixed)) {
      const pixel = frames[other].x(now), cross = elements[other].querySelector(".cross");
      cross.setAttribute("x1", pixel);
      cross.setAttribute("x2", pixel);
      cross.setAttribute("visibility", "visible");
    }
  }
  if (from && from.name === name && Math.abs(x - from.x) > 3) {
    const select = element.querySelector(".select");
    select.setAttribute("x", Math.min(x, from.x));
    select.setAttribute("width", Math.abs(x - from.x));
    select.setAttribute("visibility", "visible");
    return x;
  }
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.innerHTML = charts[name].tell(at, now, event.clientY - box.top);
  element.appendChild(tip);
  const left = x + 14 + tip.offsetWidth > box.width ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = Math.max(0, left) + "px";
  tip.style.top = at.top + 4 + "px";
  return x;
}

function listen(name) {
  const element = elements[name];
  element.addEventListener("pointermove", event => point(name, event));
  element.addEventListener("pointerleave", () => { from = null; hide(); });
  element.addEventListener("pointerdown", event => {
    from = charts[name].fixed || event.button !== 0 ? null : {name, x: point(name, event)};
    if (from) { event.preventDefault(); }
  });
  element.addEventListener("pointerup", event => {
    const x = point(name, event);
    if (from && Math.abs(x - from.x) > 6) {
      const at = frames[name];
      zoom([at.time(Math.min(x, from.x)), at.time(Math.max(x, from.x))]);
    }
    from = null;
  });
}

function zoom(to) {
  range = to;
  document.getElementById("whole").hidden = range[0] === 0 && range[1] === course.end;
  draw();
}

// --- the page --------------------------------------------------------------------------------

function draw() {
  for (const name of Object.keys(elements)) {
    const at = charts[name].draw(elements[name]);
    if (at) { frames[name] = at; }
  }
}

for (const name of Object.keys(charts)) {
  const element = document.getElementById(name);
  if (element) {
    elements[name] = element;
    if (charts[name].tell) { listen(name); }
  }
}
document.querySelectorAll("button[data-course]").forEach(button => {
  button.addEventListener("click", () => {
    document.querySelectorAll("button[data-course]").forEach(other =>
      other.setAttribute("aria-pressed", String(other === button)));
    course = data.courses[Number(button.dataset.course)];
    zoom([0, course.end]);
  });
});
document.getElementById("whole").addEventListener("click", () => zoom([0, course.end]));
draw();
let width = document.body.clientWidth;
addEventListener("resize", () => requestAnimationFrame(() => {
  if (document.body.clientWidth !== width) {
    width = document.body.clientWidth;
    draw();
  }
}));
})();
"""
