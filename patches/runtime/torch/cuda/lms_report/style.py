r"""The page's style sheet."""

STYLE = r"""
:root { color-scheme: light dark; }
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 1120px; padding: 24px 20px 48px;
  background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: 22px; line-height: 1.2; margin: 0; }
h2 { font-size: 16px; line-height: 1.3; margin: 0; }
p { margin: 4px 0; }
.about, figcaption p, .hint, .notes dd, .notes p { color: var(--muted); font-size: 13px; }
.headline { font-size: 17px; max-width: 46em; margin: 12px 0 16px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px;
  margin: 0; }
.figures > div { border: 1px solid var(--grid); border-radius: 8px; padding: 10px 12px; }
.figures dt { color: var(--muted); font-size: 13px; }
.figures dd { margin: 0; font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; }
.figures small { display: block; color: var(--muted); font-size: 13px; font-weight: 400; }
.courses { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin: 24px 0 4px;
  position: sticky; top: 0; padding: 8px 0; background: var(--page); z-index: 2; }
button { font: inherit; font-size: 14px; color: var(--ink); background: var(--page);
  border: 1px solid var(--axis); border-radius: 6px; padding: 4px 12px; cursor: pointer; }
button[aria-pressed="true"] { background: var(--ink); border-color: var(--ink);
  color: var(--page); }
button:focus-visible { outline: 2px solid var(--gpu); outline-offset: 2px; }
.hint { margin-left: auto; }
figure { margin: 20px 0 28px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; margin: 6px 0 2px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend i { width: 14px; height: 10px; border-radius: 2px; }
.legend i.line { height: 0; border-top: 2px solid; border-radius: 0; background: none !important; }
.legend i.dashed { border-top-style: dashed; }
.chart { position: relative; touch-action: pan-y; }
.chart svg { display: block; width: 100%; overflow: visible; }
.chart text { fill: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums; }
.chart text.strong { fill: var(--ink); }
.chart .grid { stroke: var(--grid); }
.chart .base { stroke: var(--axis); }
.chart .cross { stroke: var(--muted); stroke-dasharray: 2 2; }
.chart .select { fill: var(--gpu); opacity: .18; }
.tip { position: absolute; pointer-events: none; background: var(--page); color: var(--ink);
  border: 1px solid var(--axis); border-radius: 6px; padding: 6px 10px; font-size: 13px;
  line-height: 1.4; box-shadow: 0 2px 10px rgba(0, 0, 0, .18); max-width: 300px; z-index: 3; }
.tip b { font-variant-numeric: tabular-nums; }
.tables { display: grid; gap: 28px 40px; margin-top: 36px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin-top: 6px; }
th, td { border-bottom: 1px solid var(--grid); padding: 5px 0 5px 14px; text-align: right;
  font-variant-numeric: tabular-nums; vertical-align: top; }
th:first-child { text-align: left; padding-left: 0; }
td { white-space: nowrap; }
tbody th { font-weight: 400; overflow-wrap: anywhere; min-width: 9em; }
thead th { color: var(--muted); font-weight: 400; font-size: 13px; }
.tables ul { padding-left: 18px; margin: 6px 0; }
.notes { margin-top: 36px; }
.notes dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 8px 0; }
.notes dt { font-size: 13px; }
.notes dd { margin: 0; }
@media (max-width: 560px) {
  body { padding: 16px 12px 32px; font-size: 14px; }
  .headline { font-size: 15px; }
  .figures { grid-template-columns: 1fr 1fr; }
  .hint { margin-left: 0; width: 100%; }
  .notes dl { grid-template-columns: 1fr; }
  .notes dd { margin-bottom: 6px; }
}
@media print { .courses { display: none; } }
"""
