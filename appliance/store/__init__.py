"""The store: versions of models as blobs named by their digests, one catalog, one writer and any number of readers."""
