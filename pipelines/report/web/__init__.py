"""Pages of reports: templates, charts, and the files that lie beside a page."""
