"""Traces of a decoding for people: as JSON, in the terminal, and as a page that needs nothing but a browser."""
