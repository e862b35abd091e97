"""Several processes for one training: starting them, watching them, naming the one that failed."""
