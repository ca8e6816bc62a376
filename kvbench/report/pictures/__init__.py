"""Charts of finished runs: one description of each, drawn as SVG for a page and by matplotlib for a file."""
