"""Inference runtimes behind one port, one vendor per file, which the zygote and its workers import and the
daemon never does. Knows nothing of the engine, messages or slots."""
