"""Where models come from - a directory, a store, an operator's hand - read whole, and again when it
changes. Says what is there and wanted; loads nothing."""
