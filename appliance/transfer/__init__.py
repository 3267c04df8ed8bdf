"""A version's bytes on their way over a bad link: streams of differences between versions, cut into pieces that are
verified one by one, from whichever source is at hand."""
