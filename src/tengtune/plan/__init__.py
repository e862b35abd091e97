"""What a run needs, before it is started: memory of a card, of the host, and disk. No framework, no
weights."""
