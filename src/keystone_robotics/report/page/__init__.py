"""`keystone report`: one self-contained HTML page of runs.

Python reads runs and computes; `page.js` only draws. The page is `template.html` with `page.css`, `page.js` and one block
of JSON in it.
"""
