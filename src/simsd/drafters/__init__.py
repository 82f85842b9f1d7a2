"""Who guesses: draft models and cheaper sources of drafts, behind one protocol (method section 3)."""
