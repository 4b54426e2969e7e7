"""Plain data that every layer speaks: schemas, changes, options, durations, spools. No Spark."""
