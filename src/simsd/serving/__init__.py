"""The OpenAI-compatible server: routes, one engine thread, metrics, logs."""
