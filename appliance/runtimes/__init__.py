"""Inference runtimes behind one port, one vendor per file. Imported only where workers are forked from."""
