"""Task files for lm-evaluation-harness that read local JSON Lines files and run code in the guarded process."""
