"""Objects of web servers."""
