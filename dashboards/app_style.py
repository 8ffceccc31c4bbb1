"""The server's style, beside the page's: two columns, filters, the list of runs."""

from typing import Final

APP_STYLE: Final = """
body { max-width: 1800px; }
.bar { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: baseline; margin-top: 6px; }
#status { color: var(--dim); font-variant-numeric: tabular-nums; }
#crumbs:empty { display: none; } .skip { position: absolute; left: -999px; } .skip:focus { position: static; }
.trouble { padding: 10px 16px; background: var(--panel); border: 1px solid var(--line);
  border-left: 6px solid var(--error); border-radius: 6px; }
.filters { display: grid; gap: 12px; align-items: end; margin: 16px 0 0;
  grid-template-columns: minmax(120px, 1fr) repeat(4, minmax(130px, 2fr)) auto; }
.filters label { display: block; min-width: 0; font-size: 13px; color: var(--dim); }
.filters label > span { display: block; margin-bottom: 2px; }
button:not(.dash-dropdown):not([class*="dash-"]) { font: inherit; font-size: 14px; color: var(--text);
  background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: 5px 12px;
  cursor: pointer; }
.columns { display: grid; gap: 0 24px; align-items: start;
  grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
.columns h2 { margin-top: 22px; } .shown h2 { margin-top: 8px; } #lead { margin-top: 10px; font-size: 14px; }
.shown { position: sticky; top: 0; padding-top: 18px; max-height: 100vh; overflow-y: auto; }
.side .row.head { display: none; }
.side .row { display: flex; flex-wrap: wrap; gap: 4px 14px; padding: 8px 12px; }
.side .row .rank { flex: 0 0 30px; } .side .row .kind { flex: 1 1 0; min-width: 0; }
.side .row .title { flex: 1 1 100%; min-width: 0; padding-left: 44px; }
.side .row .num { text-align: left; } .side .row .toll { margin-left: 44px; min-width: 110px; }
.side .row .num::before { content: attr(data-name) " "; color: var(--dim); font-weight: 400; }
.side .body { grid-template-columns: minmax(0, 1fr); padding: 6px 14px 14px; }
.finding.picked { outline: 2px solid var(--link); outline-offset: 1px; }
#views ul { display: flex; flex-wrap: wrap; gap: 4px; list-style: none; margin: 0 0 10px; padding: 0; }
#views a { display: block; margin: 0; padding: 2px 9px; border: 1px solid var(--line); border-radius: 14px;
  background: var(--panel); text-decoration: none; font-size: 13px; }
#views .here a { background: var(--link); border-color: var(--link); color: var(--back); }
#picked:empty { display: none; } #picked { margin: 0 0 6px; }
#figure-panel { position: relative; } #unzoom { position: absolute; right: 10px; top: 8px; z-index: 3; }
.runs { width: 100%; } .runs th, .runs td { padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); }
.runs .num { text-align: right; } .runs th, .runs td:nth-child(2) { white-space: nowrap; }
.runs td { overflow-wrap: break-word; } .runs td:first-child { min-width: 200px; }
.badge.live { color: #009e73; } .wrong { color: var(--error); }
@media (max-width: 1000px) { .columns, .filters { grid-template-columns: minmax(0, 1fr); }
  .shown { position: static; max-height: none; } }
:root { --Dash-Text-Primary: var(--text); --Dash-Text-Strong: var(--text); --Dash-Text-Weak: var(--dim);
  --Dash-Text-Disabled: var(--dim); --Dash-Fill-Inverse-Strong: var(--panel); --Dash-Fill-Weak: var(--back);
  --Dash-Fill-Interactive-Strong: var(--link); --Dash-Fill-Interactive-Weak: var(--back);
  --Dash-Stroke-Strong: var(--line); --Dash-Stroke-Weak: var(--line); --Dash-Fill-Disabled: var(--line);
  --Dash-Fill-Primary-Hover: var(--back); --Dash-Fill-Primary-Active: var(--back); }
"""
