"""Whether a host can train: what was read of it (host/), judged."""
