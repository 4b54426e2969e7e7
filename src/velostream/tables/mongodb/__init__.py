"""Tables in MongoDB: one collection each, written in transactions, read as of one instant."""
