"""The run as a page to look at: what was measured, read from the run folder, judged and drawn."""
