"""`tickscribe eval`: what the text is worth, offline and live, over a manifest of recordings with references.

Route: `evaluate` reads the manifest with `app/bench/clips.py`, lets every arm transcribe it (`offline`, `streamed`,
`peer`), judges what came back (`measures`, `results`), and publishes a table, JSON and a page (`page`, `plots`).
"""
