"""What box and controller say to one another: documents, messages and records, as values and bytes. Knows neither side:
no connection, no clock, no file."""
