"""The page's style: light and dark by the reader's setting, one column, no fonts to fetch."""

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --text: #1c2128; --dim: #57606a; --back: #f6f8fa; --panel: #ffffff;
  --line: #d0d7de; --link: #0059a0; --error: #b3261e; --warning: #8a5a00; --info: #0059a0; --bar: #d55e00b0;
  --late: #c00000; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #9da7b3; --back: #0d1117;
  --panel: #161b22; --line: #343b44; --link: #79b8ff; --error: #ff8a80; --warning: #f0b429; --info: #79b8ff;
  --bar: #d55e00c0; --late: #ff9d9d; } }
:root.paper { color-scheme: light; --text: #1c2128; --dim: #57606a; --back: #ffffff; --panel: #ffffff;
  --line: #d0d7de; --link: #0059a0; --error: #b3261e; --warning: #8a5a00; --info: #0059a0; --bar: #d55e00b0;
  --late: #c00000; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 20px 24px 60px; max-width: 1240px; background: var(--back);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 20px; margin: 0; } h1 span { color: var(--dim); font-weight: 400; }
h2 { font-size: 18px; margin: 36px 0 8px; } h4 { margin: 0 0 6px; font-size: 14px; color: var(--dim); }
a { color: var(--link); } nav a { margin-right: 16px; }
.headline { font-size: 19px; font-weight: 600; margin: 14px 0; padding: 14px 18px; background: var(--panel);
  border: 1px solid var(--line); border-left: 6px solid #d55e00; border-radius: 6px; }
.headline.fine { border-left-color: #009e73; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 0; color: var(--dim); font-size: 14px; }
.facts div { display: flex; gap: 6px; } .facts dd { margin: 0; color: var(--text); }
section { margin: 0; } .lead { color: var(--dim); margin: 0 0 10px; max-width: 90ch; }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 10px; }
.row { display: grid; grid-template-columns: 34px 250px minmax(0, 1fr) 120px 84px 84px; gap: 12px;
  align-items: start; padding: 10px 14px; }
.row.head { color: var(--dim); font-size: 13px; padding: 2px 14px; }
.row.head span:nth-child(n+4) { text-align: right; }
.finding { background: var(--panel); border: 1px solid var(--line); border-left: 6px solid var(--info);
  border-radius: 6px; margin: 6px 0; }
.finding.error { border-left-color: var(--error); } .finding.warning { border-left-color: var(--warning); }
summary { cursor: pointer; list-style: none; } summary::-webkit-details-marker { display: none; }
.finding > summary .rank::before { content: "\\25B8\\00A0"; color: var(--dim); }
.finding[open] > summary .rank::before { content: "\\25BE\\00A0"; }
:focus-visible { outline: 3px solid var(--link); outline-offset: 1px; border-radius: 4px; }
.badge { display: inline-block; padding: 0 7px; border-radius: 9px; border: 1px solid; font-size: 12px;
  color: var(--info); } .error .badge { color: var(--error); } .warning .badge { color: var(--warning); }
.kind { font-weight: 600; font-size: 14px; line-height: 22px; } .title small { color: var(--dim); }
.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.toll { position: relative; font-weight: 600; isolation: isolate; }
.toll i { position: absolute; left: 0; bottom: -5px; height: 5px; background: var(--bar);
  border-radius: 2px; pointer-events: none; max-width: 100%; min-width: 2px; }
em.unknown { color: var(--dim); font-weight: 400; }
.body { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 16px 32px;
  padding: 6px 18px 16px 60px; border-top: 1px solid var(--line); }
.remedy { grid-column: 1 / -1; }
dl { margin: 0; } .body dl { display: grid; grid-template-columns: 90px minmax(0, 1fr); gap: 2px 10px; }
dt { color: var(--dim); flex: none; } dd { margin: 0; }
code, pre { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { overflow: auto; max-height: 420px; margin: 6px 0; padding: 10px 12px; background: var(--back);
  border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: 14px; } th { text-align: left; font-weight: 600; }
th, td { padding: 3px 12px 3px 0; vertical-align: top; } .evidence th { font-weight: 400; color: var(--dim); }
.evidence .number { white-space: nowrap; }
.scroll { overflow: auto; max-height: 480px; } .scroll td { border-top: 1px solid var(--line); }
.scroll table { overflow-wrap: break-word; } .scroll td:nth-child(n+2) { min-width: 84px; }
.scroll td:first-child { white-space: nowrap; }
.lamp { position: sticky; top: 0; z-index: 5; display: flex; gap: 14px; align-items: center; }
.lamp p { margin: 0; } .lamp:not(.on) p { position: absolute; left: -9999px; }
.lamp.on { margin-top: 14px; padding: 8px 14px; background: var(--panel); border: 1px solid var(--link);
  border-radius: 6px; box-shadow: 0 3px 12px #0003; }
button { font: inherit; padding: 2px 12px; color: var(--link); background: var(--back); cursor: pointer;
  border: 1px solid var(--line); border-radius: 6px; }
.finding.picked { box-shadow: 0 0 0 2px var(--link); }
.finding { scroll-margin-top: 70px; } h2 { scroll-margin-top: 60px; }
.said { margin: 0 0 6px; font-weight: 600; font-size: 14px; }
.unseen { position: absolute; left: -9999px; width: 1px; height: 1px; overflow: hidden; }
.note { color: var(--dim); font-size: 14px; margin: 6px 2px; }
.more { margin: 6px 2px; } .more > summary { color: var(--link); list-style: revert; }
.tip { position: fixed; z-index: 9; max-width: 460px; padding: 6px 10px; pointer-events: none;
  white-space: pre-line; font-size: 13px; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; box-shadow: 0 3px 12px #0004; } .tip[hidden] { display: none; }
@media print { body { max-width: none; padding: 0; }
  .lamp, .tip, nav, .modebar { display: none !important; }
  .finding, .panel, tr { break-inside: avoid; } h2 { break-after: avoid; } .scroll { max-height: none; }
  .toll i { print-color-adjust: exact; } }
@media (max-width: 1150px) { .row { grid-template-columns: 30px 176px minmax(0, 1fr) 92px 74px 74px;
  gap: 8px; } .kind .badge { display: table; } }
@media (max-width: 900px) { body { padding: 14px; } .row.head { display: none; }
  .row { grid-template-columns: 30px 1fr; } .row > span:nth-child(n+3) { grid-column: 2; text-align: left; }
  .row .num::before { content: attr(data-name) ": "; color: var(--dim); font-weight: 400; }
  .toll i { display: none; }
  .body { grid-template-columns: minmax(0, 1fr); padding-left: 18px; } }
"""
