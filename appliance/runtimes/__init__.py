"""Inference runtimes behind one port, one vendor per file. Imported only in the process that workers are forked from."""
