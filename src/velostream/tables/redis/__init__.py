"""Tables in Redis: a hash per row, written and read by scripts, so each commit and each read is one step."""
