"""Versions of models on disk: blobs named by their digests, views, one catalog, one writer and any number
of readers (docs/STORE.md). Knows no runtime and no engine, and nothing here belongs on an event loop but
reading."""
