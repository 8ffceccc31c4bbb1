"""`shardtoll serve`: the Dash app behind its guard; `assets/serve.js` feeds its answers to the page's script.

It may import `dashboards.facts`, `dashboards.page`, `dashboards.page.html`, `dashboards.page.views`,
`dashboards.words`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `app`, then `callbacks`.
"""
